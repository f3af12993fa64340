"""`raysweep show`: prints the results of a sweep."""

from __future__ import annotations

import json

import typer

from raysweep.results.export import read_selection
from raysweep.results.report import render_report
from raysweep.results.store import load_trials
from raysweep.serde import to_dict


def show(results: str, *, as_json: bool) -> None:
    """Print the table, the failures by cause, and the winner."""
    records, selection = load_trials(results), read_selection(results)
    if as_json:
        plain = {
            "trials": [to_dict(record) for record in records],
            "selection": None if selection is None else to_dict(selection),
        }
        typer.echo(json.dumps(plain, indent=2))
        return
    typer.echo(render_report(records, selection=selection))
