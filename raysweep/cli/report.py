"""`raysweep report`: writes what a sweep showed as one HTML file, Markdown or CSV, or serves it while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from raysweep.errors import ConfigError, RaysweepError
from raysweep.page.csv_table import csv_table
from raysweep.page.facts import ReportFacts, StepExplainer, gather
from raysweep.page.html import html_report, waiting_page
from raysweep.page.live_server import LiveServer, parse_address
from raysweep.page.markdown import markdown_report
from raysweep.results.journal import JournalContents, read_journal
from raysweep.results.paths import ResultsPaths
from raysweep.scale_forecast import ScaleForecast
from raysweep.search.explain_steps import explain_steps
from raysweep.search.foretell import foretell_scales

FORMS: dict[str, Callable[[ReportFacts], str]] = {"html": html_report, "md": markdown_report, "csv": csv_table}
"""Ending of the file -> what gives its text."""
STANDARD_OUTPUT = "-"


def report(results: str, *, form: str, output: str | None) -> None:
    """Write `report.html`, `report.md` or `report.csv` into the results folder, or to `output`; `-` prints it.

    Raises:
        ConfigError: for a results URI.
        RaysweepError: when no sweep has written there.
    """
    text = FORMS[form](load_facts(results, explain=explain_steps, foretell=foretell_scales))
    if output == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    path = Path(output) if output else ResultsPaths(results).report(form)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(path)


def live_server(results: str, *, address: str) -> LiveServer:
    """A server of the report of a results folder that a sweep writes to, or is about to.

    Raises:
        ConfigError: when `address` is no [HOST:]PORT, or cannot be listened on.
    """
    host, port = parse_address(address)
    journal = ResultsPaths(results).journal
    name = Path(results).resolve().name

    def version() -> str:
        # The journal only grows; a sweep that begins anew writes another file.
        state = journal.stat() if journal.exists() else None
        return f"{state.st_ino}-{state.st_size}" if state else "none"

    def page(now: str) -> str:
        try:
            return html_report(load_facts(results), live_version=now)
        except RaysweepError:
            return waiting_page(name, live_version=now)

    return LiveServer(page=page, version=version, host=host, port=port)


def load_facts(
    results: str,
    *,
    explain: StepExplainer | None = None,
    foretell: Callable[[JournalContents], ScaleForecast | None] | None = None,
) -> ReportFacts:
    """The facts of a results folder; `explain` and `foretell` as in `raysweep.page.facts.gather`.

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
    return gather(
        read_journal(paths.journal),
        name=Path(results).resolve().name,
        sweep_file=sweep_file,
        explain=explain,
        foretell=foretell,
    )
