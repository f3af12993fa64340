"""Reads the package's own source, for the tests of its structure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "raysweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import statement's target, as dotted names."""

    importer: str
    imported: str
    is_late: bool
    """Whether it stands inside a function."""


@cache
def module_paths() -> dict[str, Path]:
    """Dotted name -> file, for every module of the package."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {_dotted(path): path for path in paths}


def parsed(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def folder_of(module: str) -> str:
    """The folder of a module of the package: `search` for raysweep.search.tuner, empty at the top level."""
    path = module_paths()[module].relative_to(ROOT / PACKAGE)
    return path.parts[0] if len(path.parts) > 1 else ""


@cache
def imports() -> list[Import]:
    """Every import of every module; names from inside the package are resolved to the module that they name."""
    known = module_paths()
    return [
        Import(importer=module, imported=imported, is_late=is_late)
        for module, path in known.items()
        for imported, is_late in _imports_of(parsed(path), known)
    ]


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(node: ast.AST, known: dict[str, Path], *, is_late: bool = False) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, is_late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0 and child.module, "imports are absolute"
            names = (f"{child.module}.{alias.name}" for alias in child.names)
            yield from ((name if name in known else child.module, is_late) for name in names)
        else:
            inside = is_late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports_of(child, known, is_late=inside)
