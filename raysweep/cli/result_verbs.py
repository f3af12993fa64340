"""Knows the verbs that read results, with their options, and loads the one that is asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from raysweep.cli.options import AsJson, ResultsArgument


def show(results: ResultsArgument, json: AsJson = False) -> None:
    """Print the results of a sweep as a table: every candidate, with figures or a reason.

    \b
    Example:
        raysweep show results/quickstart
    """
    from raysweep.cli import show as verb

    verb.show(results, as_json=json)


def export(
    results: ResultsArgument,
    to: Annotated[
        str | None,
        typer.Option(help="Frameworks: deepspeed, accelerate, hf, lightning, ray, torchrun, slurm, kuberay, or all."),
    ] = None,
    candidate: Annotated[str | None, typer.Option(metavar="ID", help="With --to: not the winner, but this.")] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --to: workers, where not those of the sweep.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="With --to: not RESULTS/exports/ID, but this.")
    ] = None,
) -> None:
    """Write the winner's files (best/) again from the records; with --to those of other frameworks.

    \b
    Examples:
        raysweep export results/quickstart
        raysweep export results/quickstart --to accelerate,hf,slurm
        raysweep export results/quickstart --to all --world-size 16 --output exported
    """
    from raysweep.cli import export as verb

    if to is not None:
        verb.export_to(results, targets=to, candidate_id=candidate, world_size=world_size, output=output)
        return
    for option, value in {"--candidate": candidate, "--world-size": world_size, "--output": output}.items():
        if value is not None:
            raise typer.BadParameter("needs --to, which names the frameworks", param_hint=option)
    verb.export(results)


def report(
    results: ResultsArgument,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown in place of HTML.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="The table of candidates as CSV in place of HTML.")] = False,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Not RESULTS/report.html (.md, .csv), but this; - prints it.")
    ] = None,
) -> None:
    """Write what a sweep showed as one HTML file that opens from disk: the answer first, then every candidate.

    \b
    Examples:
        raysweep report results/quickstart
        raysweep report results/quickstart --markdown --output -
    """
    from raysweep.cli import report as verb

    if markdown and csv:
        raise typer.BadParameter("gives one file: Markdown or CSV", param_hint="--markdown --csv")
    verb.report(results, form="md" if markdown else "csv" if csv else "html", output=output)


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A results folder or URI.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
) -> None:
    """Print what moved between two sweeps beyond the noise: rates, peaks, how candidates ended, and the winners.

    \b
    Example:
        raysweep compare results/quickstart results/quickstart
    """
    from raysweep.cli import compare as verb

    verb.compare_sweeps(first, second)
