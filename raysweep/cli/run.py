"""`raysweep run`: runs a sweep and prints a line for each launch, then the winner."""

from __future__ import annotations

import textwrap

import typer

from raysweep.cli.plan import render_plan
from raysweep.plan import SweepPlan
from raysweep.results.side_by_side import render_side_by_side
from raysweep.search.sweep_run import SweepResult, run_sweep
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement, Phase
from raysweep.units import format_bytes, format_seconds

UNCONFIRMED = 5
WIDEST_REASON = 120
"""Characters of a reason on one line; `raysweep show` and trials.parquet have all of it."""


def run(sweep: Sweep, *, address: str | None, resume: bool, overwrite: bool) -> None:
    """Run a sweep.

    Raises:
        typer.Exit: with code 5 when the best was not confirmed.
    """
    result = run_sweep(sweep, observer=_Printer(sweep), address=address, resume=resume, overwrite=overwrite)
    typer.echo(summary(result))
    if not result.selection.confirmed:
        raise typer.Exit(UNCONFIRMED)


class _Printer:
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
        typer.echo(f"{self._place(measurement):>12}  {measurement.candidate_id:<16} {self._figures(measurement)}")

    def _place(self, measurement: Measurement) -> str:
        if measurement.phase is Phase.CONFIRM:
            return f"round {measurement.round}"
        if measurement.phase is Phase.SEARCH:
            self._done += 1
        return f"{self._done}/{self._launches}" if measurement.phase is Phase.SEARCH else "once more"

    def _figures(self, measurement: Measurement) -> str:
        peak = format_bytes(measurement.peak_memory_bytes)
        memory = f"peak {peak} of {format_bytes(self._budget_bytes)}"
        figures = measurement.figures
        if figures is None:
            kind = f" ({measurement.failure_kind})" if measurement.failure_kind else ""
            return textwrap.shorten(f"{measurement.status}{kind}: {measurement.reason}", WIDEST_REASON)
        return f"{figures.samples_per_s:8.2f} samples/s  {memory}  in {format_seconds(measurement.wall_s)}"


def summary(result: SweepResult) -> str:
    """The winner, by how much, what it cost, and where its files are."""
    selection = result.selection
    assert selection.winner is not None and selection.samples_per_s is not None, "no winner is an error before this"
    interval = ""
    if selection.samples_per_s_low is not None and selection.samples_per_s_high is not None:
        interval = f" (95 % interval {selection.samples_per_s_low:.2f} to {selection.samples_per_s_high:.2f})"
    winner = next(record for record in result.records if record.candidate_id == selection.winner)
    state = "confirmed" if selection.confirmed else "NOT confirmed"
    lines = [
        "",
        f"Winner, {state}: {selection.winner}: {selection.samples_per_s:.2f} samples/s{interval}",
        f"  ZeRO stage {winner.zero_stage}, activation checkpoint interval {winner.activation_checkpoint_interval}, "
        f"micro-batch {winner.micro_batch_size_per_gpu}, accumulation {winner.gradient_accumulation_steps}",
        f"  peak {format_bytes(winner.peak_memory_bytes)} of {format_bytes(winner.memory_budget_bytes)} a worker",
    ]
    if selection.runner_up:
        lines.append(f"Runner-up: {selection.runner_up}: {selection.runner_up_reason}")
    comparison = render_side_by_side(result.records)
    if comparison:
        lines += ["", comparison, ""]
    lines += [
        f"Spent: {result.launches} launches in {result.group_starts} worker groups, {format_seconds(result.wall_s)}; "
        f"the search ended because {result.stop_reason}",
        f"Files: {result.folder}/best/ds_config.json, {result.folder}/trials.parquet; raysweep show {result.folder}",
    ]
    return "\n".join(lines)
