"""Traces candidates behind a progress bar, where a person sits at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from raysweep.candidate import Candidate
from raysweep.estimate.tracing import Traces, trace_sweep
from raysweep.sweep_file import Sweep


def trace_with_bar(sweep: Sweep, candidates: Sequence[Candidate]) -> Traces:
    """Trace candidates; on standard error a bar shows how many traces are done."""
    columns = (
        TextColumn("tracing on the CPU"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("traces"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=None)
        return trace_sweep(
            sweep, candidates, progress=lambda done, needed: bar.update(task, completed=done, total=needed)
        )
