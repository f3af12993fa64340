"""The report as one HTML file that needs nothing else: no network, no second file."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from raysweep.page import charts, summary
from raysweep.page.facts import ReportFacts
from raysweep.page.gains import gains
from raysweep.page.rows import HEADINGS, NUMERIC, table_rows
from raysweep.page.speed_map import stage_maps
from raysweep.page.step_parts import step_parts
from raysweep.results.scaling import HEADINGS as SCALING_HEADINGS
from raysweep.results.scaling import MEANING as SCALING_MEANING
from raysweep.results.scaling import scaling
from raysweep.scale_forecast import HEADINGS as FORECAST_HEADINGS
from raysweep.units import format_bytes

ROWS_AT_FIRST = 300
"""Rows that the page shows before all are asked for; all are in the file, and all are printed."""


def html_report(facts: ReportFacts, *, live_version: str | None = None) -> str:
    """The page.

    Every value is escaped by Jinja2, and the page's own policy lets no script run but the one that is in it, and
    nothing be loaded. With a `live_version` it asks its server for what is new, and has a second script for that.
    """
    values = {**_answer(facts), **_charts(facts), **_rest(facts)}
    script = _static("live.js")
    live = None
    if live_version is not None:
        live = {"version": live_version, "js": Markup(script), "sha256": _sha256(script)}
    return _environment().get_template("report.html.j2").render(**values, live=live)


def waiting_page(name: str, *, live_version: str) -> str:
    """The live page before the sweep has a plan."""
    script = _static("live.js")
    return (
        _environment()
        .get_template("waiting.html.j2")
        .render(
            name=name,
            version=live_version,
            css=Markup(_static("report.css")),
            live_js=Markup(script),
            live_sha256=_sha256(script),
        )
    )


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("raysweep.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _answer(facts: ReportFacts) -> dict[str, Any]:
    winner = facts.winner
    rate, interval = summary.rate_and_interval(facts)
    memory, share = summary.memory(winner) if winner else ("", None)
    return {
        "facts": facts,
        "winner": winner,
        "rate": rate,
        "interval": interval,
        "memory": memory,
        "share": share,
        "gains": gains(facts),
        "cost": summary.cost(facts),
        "budget": format_bytes(facts.sweep.memory_budget_bytes),
        "model": summary.model_name(facts.sweep.workload.model),
        "conditions": summary.conditions(facts),
    }


def _charts(facts: ReportFacts) -> dict[str, Any]:
    return {
        "maps": stage_maps(facts),
        "speed_against_memory": charts.speed_against_memory(facts),
        "predicted_against_measured": charts.predicted_against_measured(facts),
        "prediction_error": charts.prediction_error(facts),
        "search_trace": charts.search_trace(facts),
        "step_times": charts.step_times(facts),
        "step_time_error": charts.step_time_error(facts),
        "step_parts": step_parts(facts),
        "rounds": list(facts.rounds.values()),
        "scaling": scaling(facts.records),
        "scaling_headings": SCALING_HEADINGS,
        "scaling_meaning": SCALING_MEANING,
        "forecast_headings": FORECAST_HEADINGS,
    }


def _rest(facts: ReportFacts) -> dict[str, Any]:
    rows = table_rows(facts)
    script = _static("report.js")
    return {
        "rows": rows,
        "limit": ROWS_AT_FIRST,
        "headings": HEADINGS,
        "numeric": NUMERIC,
        "statuses": sorted({row.status for row in rows}),
        "causes": facts.causes,
        "provenance": summary.provenance(facts),
        "reproduce": summary.reproduce(facts),
        "workload": json.dumps(facts.sweep.workload.described(), indent=2),
        "css": Markup(_static("report.css")),
        "js": Markup(script),
        "script_sha256": _sha256(script),
    }


def _sha256(script: str) -> str:
    """Of a script as it stands in the page, with the line feed before it, as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()


def _static(name: str) -> str:
    return files("raysweep.page").joinpath("templates", name).read_text(encoding="utf-8")
