"""Which files a text consists of, and how many samples they hold: the part of reading data that needs no torch."""

from __future__ import annotations

import glob
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXT_LIMIT_BYTES = 8 * 1024**2
"""Most text that is read: enough for any measured window, and small beside a model."""

STANDARD_LIBRARY = "stdlib"
BYTE_VALUES = 256
"""Tokens of a text: its bytes."""


def text_files(path: str) -> list[Path]:
    """The files of a path, folder, glob, or of the standard library (`stdlib`), in the order in which they are read."""
    if path == STANDARD_LIBRARY:
        return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if Path(path).is_dir():
        return sorted(file for file in Path(path).rglob("*") if file.is_file())
    return sorted(Path(found) for found in glob.glob(path, recursive=True) if Path(found).is_file())


def samples_in(size_bytes: int, *, sequence_length: int) -> int:
    """Windows that do not overlap, each with the token after it: (bytes - 1) // sequence_length."""
    return max(0, size_bytes - 1) // sequence_length


def known_samples(data: Mapping[str, Any], *, sequence_length: int) -> int | None:
    """Samples of a data section, told by file sizes alone.

    None where they do not run out, or where no file is seen from here: it may be on the workers' nodes.
    """
    if data["kind"] != "text":
        return None
    size_bytes = sum(file.stat().st_size for file in text_files(data["path"]))
    return samples_in(min(size_bytes, TEXT_LIMIT_BYTES), sequence_length=sequence_length) if size_bytes else None
