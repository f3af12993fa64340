"""Packs a working directory as one zip: without .git, and without what .gitignore and .rayignore name."""

from __future__ import annotations

import os
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pathspec import GitIgnoreSpec

import raysweep
from raysweep.errors import ConfigError
from raysweep.tables import aligned
from raysweep.units import format_bytes

IGNORE_FILES = (".gitignore", ".rayignore")
ALWAYS_LEFT_OUT = (".git", ".venv", "venv", "__pycache__")
"""What Ray leaves out, too."""
LARGEST_SHOWN = 5
OLDEST_DATE = (1980, 1, 1, 0, 0, 0)
"""The date of every entry: equal files give an equal package."""


@dataclass(frozen=True)
class Package:
    """The files that are sent."""

    root: Path
    files: tuple[tuple[str, Path], ...]
    """Name in the package, with slashes; and the file. Sorted by name."""

    @cached_property
    def size_bytes(self) -> int:
        """Of all files; the zip is not compressed for Ray, which counts the same."""
        return sum(path.stat().st_size for _, path in self.files)

    def write(self, target: Path, *, compressed: bool = False) -> None:
        """Write the zip; the same bytes for the same files."""
        kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        with zipfile.ZipFile(target, "w", kind) as archive:
            for name, path in self.files:
                entry = zipfile.ZipInfo(name, date_time=OLDEST_DATE)
                entry.compress_type = kind
                entry.external_attr = (0o755 if os.access(path, os.X_OK) else 0o644) << 16
                archive.writestr(entry, path.read_bytes())

    def largest(self) -> list[tuple[str, int]]:
        """The five items that weigh most, heaviest first; a folder is one where no part of it is more than half."""
        return sorted(self._items(), key=lambda item: -item[1])[:LARGEST_SHOWN]

    def _items(self, inside: str = "") -> Iterator[tuple[str, int]]:
        sizes: dict[str, int] = defaultdict(int)
        for name, path in self.files:
            if name.startswith(inside):
                first, slash, _ = name[len(inside) :].partition("/")
                sizes[f"{inside}{first}{slash}"] += path.stat().st_size
        for item, size_bytes in sizes.items():
            parts = list(self._items(item)) if item.endswith("/") else []
            if parts and max(part for _, part in parts) > size_bytes / 2:
                yield from parts
            else:
                yield item, size_bytes

    def check_size(self, *, limit_bytes: int, whose: str, remedy: str, size_bytes: int | None = None) -> None:
        """Refuse what the other side would refuse, before it is sent.

        Raises:
            ConfigError: with the limit and the five largest items.
        """
        size_bytes = self.size_bytes if size_bytes is None else size_bytes
        if size_bytes <= limit_bytes:
            return
        rows = [[f"  {name}", format_bytes(item_bytes)] for name, item_bytes in self.largest()]
        table = aligned(rows[0], rows[1:])
        raise ConfigError(
            key="working_dir",
            value=str(self.root),
            rule=f"its package of {format_bytes(size_bytes)} is above the limit of {format_bytes(limit_bytes)} of "
            f"{whose}; nothing was sent. The largest items:\n{table}\n{remedy}",
        )


def pack(root: Path, *, with_raysweep: bool) -> Package:
    """The package of a working directory.

    Args:
        root: the folder.
        with_raysweep: add this raysweep's own modules, where the folder does not hold a raysweep.

    Raises:
        ConfigError: when it is no folder.
    """
    if not root.is_dir():
        raise ConfigError(key="working_dir", value=str(root), rule="is no folder")
    files = dict(_kept(root, "", []))
    own = Path(raysweep.__file__).parent
    if with_raysweep and not (root / own.name / "__init__.py").exists():
        files |= {f"{own.name}/{name}": path for name, path in _kept(own, "", [])}
    return Package(root=root, files=tuple(sorted(files.items())))


def _kept(folder: Path, inside: str, rules: Sequence[tuple[str, GitIgnoreSpec]]) -> Iterator[tuple[str, Path]]:
    """Files below a folder that no ignore file of it or above it names; links to folders are not followed."""
    here = [folder / name for name in IGNORE_FILES if (folder / name).is_file()]
    lines = [line for file in here for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    rules = [*rules, (inside, GitIgnoreSpec.from_lines(lines))] if lines else rules
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        is_folder = entry.is_dir()
        name = f"{inside}{entry.name}{'/' if is_folder else ''}"
        if entry.name in ALWAYS_LEFT_OUT or _is_ignored(name, rules) or (is_folder and entry.is_symlink()):
            continue
        if is_folder:
            yield from _kept(Path(entry.path), name, rules)
        elif entry.is_file():
            yield name, Path(entry.path)


def _is_ignored(name: str, rules: Sequence[tuple[str, GitIgnoreSpec]]) -> bool:
    """The ignore file that is nearest to a name has the last word, as in git."""
    for inside, spec in reversed(rules):
        verdict = spec.check_file(name[len(inside) :]).include
        if verdict is not None:
            return verdict
    return False
