"""The report as Markdown: the answer, the causes and the table, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raysweep.page import summary
from raysweep.page.facts import ReportFacts
from raysweep.page.gains import gains
from raysweep.page.rows import HEADINGS, NUMERIC, table_rows
from raysweep.page.step_parts import step_parts
from raysweep.results.scaling import HEADINGS as SCALING_HEADINGS
from raysweep.results.scaling import MEANING as SCALING_MEANING
from raysweep.results.scaling import scaling
from raysweep.scale_forecast import HEADINGS as FORECAST_HEADINGS

_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#~"})


def markdown_report(facts: ReportFacts) -> str:
    """All but the charts; text of others is escaped, and line feeds in it become spaces."""
    parts = [
        f"# {plain(facts.name)}",
        f"{plain(summary.model_name(facts.sweep.workload.model))}; {plain(summary.conditions(facts))}",
        *_answer(facts),
        *_causes(facts),
        *_step(facts),
        *_scaling(facts),
        "## Every candidate",
        _table(HEADINGS, ([cell.text for cell in row.cells] for row in table_rows(facts))),
        "## Where this comes from",
        "\n".join(f"- {plain(name)}: {plain(value)}" for name, value in summary.provenance(facts)),
    ]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Text that Markdown shows as it stands, in one line."""
    return " ".join(text.split()).translate(_SPECIAL)


def _answer(facts: ReportFacts) -> list[str]:
    winner = facts.winner
    if winner is None:
        return [f"**No winner**: {plain(facts.selection.none_because)}. Spent: {plain(summary.cost(facts))}."]
    rate, interval = summary.rate_and_interval(facts)
    shown = f" (95 % interval {interval})" if interval else ""
    state = "confirmed" if facts.selection.confirmed else "not confirmed"
    lines = [
        f"- memory: {summary.memory(winner)[0]}",
        *(f"- by the objective: {plain(value)}" for _, value in summary.objective(facts)),
        f"- Pareto front of speed and memory: {', '.join(facts.selection.pareto_front)}",
        *(f"- against {plain(gain.against)}: {plain(gain.told)}" for gain in gains(facts)),
        f"- cost of the sweep: {plain(summary.cost(facts))}",
    ]
    if facts.selection.runner_up:
        lines.insert(1, f"- runner-up: {facts.selection.runner_up}: {plain(facts.selection.runner_up_reason)}")
    return [f"**{winner.candidate_id}: {rate} samples/s**{shown}, {state}", "\n".join(lines)]


def _causes(facts: ReportFacts) -> list[str]:
    if not facts.causes:
        return []
    rows = ([str(cause.count), cause.cause, cause.example] for cause in facts.causes)
    return ["## Without figures, by cause", _table(("candidates", "cause", "for example"), rows)]


def _step(facts: ReportFacts) -> list[str]:
    found = step_parts(facts)
    if found is None:
        return []
    rows = ([part.kind, part.milliseconds, part.percent] for part in found.parts)
    return ["## Where the winner's step goes", plain(found.told), _table(("part", "ms", "%"), rows)]


def _scaling(facts: ReportFacts) -> list[str]:
    points, forecast = scaling(facts.records), facts.forecast
    parts = []
    if points:
        parts += ["## By the number of workers", plain(f"Measured. {SCALING_MEANING}.")]
        parts += [_table(SCALING_HEADINGS, (point.cells() for point in points))]
    if forecast:
        parts += ["## Prediction for more workers", plain(forecast.told())]
        parts += [_table(FORECAST_HEADINGS, (each.cells() for each in forecast.predictions))]
    return parts


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rules = ["---:" if heading in NUMERIC else "---" for heading in headings]
    lines = [headings, rules, *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
