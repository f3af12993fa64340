"""Options whose values are sizes and counts, as people write them."""

from __future__ import annotations

from typing import Any

import typer

from raysweep.units import MIB, parse_bytes, whole_number


def read_size(text: str) -> int:
    """Bytes from `80GiB`; less than 1 MiB is a forgotten unit.

    Raises:
        typer.BadParameter: when the text is no such size.
    """
    try:
        size_bytes = parse_bytes(text)
        if size_bytes < MIB:
            raise ValueError(f"{text!r} is {size_bytes} bytes; give a unit, for example 80GiB")
        return size_bytes
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def read_count(text: str) -> int:
    """A whole number from `7e9`.

    Raises:
        typer.BadParameter: when the text is none.
    """
    try:
        return whole_number(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; write for example 7e9") from None


def number_option(text: str) -> Any:
    """An option that takes a count; `text` is its help."""
    return typer.Option(parser=read_count, metavar="N", help=text)
