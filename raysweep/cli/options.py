"""The arguments and options that several verbs share, and how their values are read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raysweep.units import MIB, parse_bytes, whole_number


def parse_size(text: str) -> int:
    """Bytes of `80GiB`.

    Raises:
        typer.BadParameter: when it is no size, or none of a device.
    """
    try:
        size = parse_bytes(text)
        if size < MIB:
            raise ValueError(f"{text!r} is {size} bytes; give a unit, for example 80GiB")
        return size
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_count(text: str) -> int:
    """A whole number, also of `7e9`.

    Raises:
        typer.BadParameter: when it is none.
    """
    try:
        return whole_number(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; write for example 7e9") from None


def number(text: str) -> Any:
    """An option that takes a whole number, with its help."""
    return typer.Option(parser=parse_count, metavar="N", help=text)


SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="The sweep file (YAML).")]
ResultsArgument = Annotated[str, typer.Argument(metavar="RESULTS", help="A results folder or URI.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
AddressOption = Annotated[
    str | None, typer.Option(help="An existing Ray cluster (auto, host:port); by default a local Ray is started.")
]
ToOption = Annotated[str | None, typer.Option(help="ray, slurm or kuberay; the file's submit.to where not given.")]
DashboardOption = Annotated[
    str | None, typer.Option(metavar="URL", help="With --to ray: the dashboard, e.g. http://head:8265.")
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A key of the place's part of the file's submit section; more than once."),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job's name, or the sweep file that was sent.")]
