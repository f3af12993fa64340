"""Progress of a sweep at a terminal: a table that is drawn anew as launches begin and end."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysweep.cli.plan import render_plan
from raysweep.plan import SweepPlan
from raysweep.search.observer import Observer
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement, Phase
from raysweep.units import format_bytes, format_seconds

ROWS_SHOWN = 16
"""The latest launches; all of them are in the results folder."""
REDRAWS_PER_S = 2


class LiveTable(Observer):
    """A table of the launches under a line that says how far the sweep is; a context manager.

    Args:
        sweep: the sweep file, read.
        console: where to draw.
        clock: seconds that only grow.
    """

    def __init__(self, sweep: Sweep, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._sweep = sweep
        self._console = console
        self._clock = clock
        self._began_s = clock()
        self._launches = 0
        self._expected_s = 0.0
        self._budget_bytes: int | None = None
        self._ended: list[Measurement] = []
        self._running: tuple[str, str, float] | None = None
        self._note = ""
        self._live = Live(get_renderable=self.draw, console=console, refresh_per_second=REDRAWS_PER_S)

    def __enter__(self) -> LiveTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running = None
        self._live.stop()

    def planned(self, plan: SweepPlan, launches: int) -> None:
        self._launches = launches
        self._expected_s = plan.cost.wall_s
        self._budget_bytes = plan.memory_budget_bytes
        self._console.print(render_plan(self._sweep, plan), highlight=False, markup=False, soft_wrap=True)
        self._live.start()

    def note(self, text: str) -> None:
        self._note = text

    def launching(self, candidate_id: str, phase: Phase, round_number: int) -> None:
        self._running = (candidate_id, _place(phase, round_number), self._clock())

    def measured(self, measurement: Measurement) -> None:
        self._running = None
        self._ended.append(measurement)

    def draw(self) -> Group:
        """What the terminal shows now."""
        table = Table(box=None, pad_edge=False)
        for heading in ("candidate", "phase", "status"):
            table.add_column(heading, no_wrap=True)
        table.add_column("samples/s", justify="right", no_wrap=True)
        table.add_column(f"peak of {format_bytes(self._budget_bytes)}", justify="right", no_wrap=True)
        for measurement in self._ended[-ROWS_SHOWN:]:
            table.add_row(*_cells(measurement))
        if self._running is not None:
            candidate_id, place, began_s = self._running
            table.add_row(candidate_id, place, f"running {format_seconds(self._clock() - began_s)}", "", "")
        return Group(Text(self._note), table, Text(self.progress()))

    def progress(self) -> str:
        """How far the sweep is: trials, time and worker-hours, and the best so far."""
        searched = [each for each in self._ended if each.phase is Phase.SEARCH]
        spent_s = self._clock() - self._began_s
        hours = spent_s * self._sweep.workload.world_size / 3600
        left = f"{len(searched)} of {self._launches} launched, {format_seconds(spent_s)}, {hours:.2f} worker-hours"
        rates = [(each.figures.samples_per_s, each.candidate_id) for each in searched if each.figures]
        best = f"\nbest so far: {max(rates)[1]} with {max(rates)[0]:.2f} samples/s" if rates else ""
        return f"{left}{self._time_left(len(searched), spent_s)}{best}"

    def _time_left(self, searched: int, spent_s: float) -> str:
        """By the pace of the search so far; before its first launch ended, by the plan."""
        if searched >= self._launches:
            return ""
        per_launch_s = spent_s / searched if searched else self._expected_s / max(self._launches, 1)
        return f"; about {format_seconds(per_launch_s * (self._launches - searched))} of search left"


def _place(phase: Phase, round_number: int) -> str:
    return f"round {round_number}" if phase is Phase.CONFIRM else str(phase)


def _cells(measurement: Measurement) -> tuple[str, str, str, str, str]:
    phase = _place(measurement.phase, measurement.round)
    kind = f" ({measurement.failure_kind})" if measurement.failure_kind else ""
    rate = f"{measurement.figures.samples_per_s:.2f}" if measurement.figures else "-"
    peak = format_bytes(measurement.peak_memory_bytes)
    return measurement.candidate_id, phase, f"{measurement.status}{kind}", rate, peak
