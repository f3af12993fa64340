"""`raysweep report`: writes what a sweep showed as one HTML file, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from raysweep.errors import ConfigError
from raysweep.page.csv_table import csv_table
from raysweep.page.facts import ReportFacts, gather
from raysweep.page.html import html_report
from raysweep.page.markdown import markdown_report
from raysweep.results.journal import read_journal
from raysweep.results.paths import ResultsPaths

FORMS: dict[str, Callable[[ReportFacts], str]] = {"html": html_report, "md": markdown_report, "csv": csv_table}
"""Ending of the file -> what gives its text."""
STANDARD_OUTPUT = "-"


def report(results: str, *, form: str, output: str | None) -> None:
    """Write `report.html`, `report.md` or `report.csv` into the results folder, or to `output`; `-` prints it.

    Raises:
        ConfigError: for a results URI.
        RaysweepError: when no sweep has written there.
    """
    text = FORMS[form](load_facts(results))
    if output == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    path = Path(output) if output else ResultsPaths(results).report(form)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(path)


def load_facts(results: str) -> ReportFacts:
    """The facts of a results folder.

    Raises:
        ConfigError: for a results URI.
        RaysweepError: when no sweep has written there.
    """
    if "://" in results:
        raise ConfigError(
            key="RESULTS",
            value=results,
            rule="a report is made from the journal, which is read from a local folder: copy it here first",
        )
    paths = ResultsPaths(results)
    sweep_file = paths.sweep_file.read_text(encoding="utf-8") if paths.sweep_file.is_file() else ""
    return gather(read_journal(paths.journal), name=Path(results).resolve().name, sweep_file=sweep_file)
