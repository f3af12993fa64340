"""Reads and prints bytes, counts, seconds and rates; the only place that knows GiB."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_BYTES_PER_UNIT = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_SIZE = re.compile(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(value: object) -> int:
    """Read a size: a count of bytes (`5e8`), or a number with a unit (`"1.5GiB"`, `"512 MB"`).

    Raises:
        ValueError: when the text is not a size, or its unit is unknown.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a size; write for example 1.5GiB")
    if isinstance(value, int | float):
        return whole_number(value)
    match = _SIZE.fullmatch(str(value))
    if not match or (match[2] and match[2].lower() not in _BYTES_PER_UNIT):
        raise ValueError(
            f"{value!r} is not a size; write for example 1.5GiB (units: KiB, MiB, GiB, TiB, KB, MB, GB, TB)"
        )
    return round(float(match[1]) * _BYTES_PER_UNIT[match[2].lower() or "b"])


def whole_number(value: object) -> int:
    """Read a count, `5e8` included: YAML 1.1 hands that over as text, and DeepSpeed wants an integer.

    Raises:
        ValueError: when the value is not a number, or has a fraction.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    try:
        number = float(value) if not isinstance(value, int) else value  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None
    if isinstance(number, float) and not number.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)


Count = Annotated[int, BeforeValidator(whole_number)]
"""A whole number in a sweep file; `5e8` is read as 500000000."""

ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
"""A size in a sweep file, in bytes; `1.5GiB` is read as 1610612736."""


def gib(size_bytes: float) -> float:
    """Bytes as GiB (2**30)."""
    return size_bytes / GIB


def format_bytes(size_bytes: float | None) -> str:
    """Bytes for people: three significant figures in the largest unit that leaves at least 1."""
    if size_bytes is None:
        return "-"
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            amount = size_bytes / unit
            return f"{amount:.1f} {name}" if amount >= 10 else f"{amount:.2f} {name}"
    return f"{size_bytes:.0f} B"


def format_seconds(duration_s: float | None) -> str:
    """A duration for people: `3.2 s`, `4 min 10 s`, `2 h 5 min`."""
    if duration_s is None:
        return "-"
    if duration_s < 60:
        return f"{duration_s:.1f} s" if duration_s >= 1 else f"{duration_s * 1000:.0f} ms"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
