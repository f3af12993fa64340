"""Writes docs/map.md anew from the docstrings of the modules: `make format`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from source_tree import PACKAGE, ROOT, module_paths, parsed

MAP = ROOT / "docs" / "map.md"
HEADING = "\n## Modules\n"


def map_lines() -> list[str]:
    """A line for each module: those at the top first, then folder by folder."""
    return [
        f"- `{path.relative_to(ROOT)}`: {_first_sentence(path)}" for path in sorted(module_paths().values(), key=_place)
    ]


def _first_sentence(path: Path) -> str:
    return re.split(r"(?<=\.) (?=[A-Z])", ast.get_docstring(parsed(path)) or "")[0]


def _place(path: Path) -> tuple[bool, str, bool, str]:
    inside = path.relative_to(ROOT / PACKAGE)
    return (
        len(inside.parts) > 1,
        inside.parts[0] if len(inside.parts) > 1 else "",
        path.name != "__init__.py",
        path.name,
    )


if __name__ == "__main__":
    head = MAP.read_text().split(HEADING)[0]
    MAP.write_text(head + HEADING + "\n" + "\n".join(map_lines()) + "\n")
