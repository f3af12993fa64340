"""Progress of a sweep: plain lines where there is no terminal."""

from __future__ import annotations

import textwrap

import typer

from raysweep.cli.plan import render_plan
from raysweep.plan import SweepPlan
from raysweep.search.observer import Observer
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement, Phase, TrialStatus
from raysweep.units import format_bytes, format_seconds

WIDEST_REASON = 120
"""Characters of a reason on one line; `raysweep show` and trials.parquet have all of it."""
WORTH_TELLING_S = 2.0


class Lines(Observer):
    """Prints one plain line for everything that happens."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._launches = 0
        self._done = 0
        self._budget_bytes: int | None = None

    def planned(self, plan: SweepPlan, launches: int) -> None:
        self._launches = launches
        self._budget_bytes = plan.memory_budget_bytes
        typer.echo(render_plan(self._sweep, plan))
        typer.echo("")

    def note(self, text: str) -> None:
        typer.echo(text)

    def measured(self, measurement: Measurement) -> None:
        figures = figures_of(measurement, self._budget_bytes)
        typer.echo(f"{self._place(measurement):>12}  {measurement.candidate_id:<16} {figures}")

    def _place(self, measurement: Measurement) -> str:
        if measurement.phase is Phase.CONFIRM:
            return f"round {measurement.round}"
        if measurement.phase is Phase.SEARCH:
            self._done += 1
            return f"{self._done}/{self._launches}"
        return "audit" if measurement.phase is Phase.AUDIT else "once more"


def figures_of(measurement: Measurement, budget_bytes: int | None) -> str:
    """What a launch showed, on one line."""
    figures = measurement.figures
    if figures is None:
        kind = f" ({measurement.failure_kind})" if measurement.failure_kind else ""
        return textwrap.shorten(f"{measurement.status}{kind}: {measurement.reason}", WIDEST_REASON)
    memory = f"peak {format_bytes(measurement.peak_memory_bytes)} of {format_bytes(budget_bytes)}"
    seconds = format_seconds(measurement.wall_s - measurement.waited_s)
    waited = (
        f" after {format_seconds(measurement.waited_s)} for workers" if measurement.waited_s > WORTH_TELLING_S else ""
    )
    stopped = "  STOPPED, far behind the best" if measurement.status is TrialStatus.STOPPED else ""
    return f"{figures.samples_per_s:8.2f} samples/s  {memory}  in {seconds}{waited}{stopped}"
