"""The results as plain text: a table of the candidates, and the failures grouped by cause."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raysweep.candidate import axes_legend
from raysweep.objective import Goal
from raysweep.results.prediction import render_prediction
from raysweep.results.records import TrialRecord
from raysweep.results.scaling import render_scaling
from raysweep.results.select import Selection
from raysweep.results.side_by_side import render_side_by_side
from raysweep.results.worth import best_known_rate, format_value
from raysweep.trial import TrialStatus
from raysweep.units import format_bytes

_STATUS_ORDER = (
    TrialStatus.COMPLETED,
    TrialStatus.STOPPED,
    TrialStatus.TIMED_OUT,
    TrialStatus.OOM,
    TrialStatus.FAILED,
    TrialStatus.PRUNED,
    TrialStatus.SKIPPED,
)
_HEADINGS = ("", "candidate", "status", "samples/s", "confirmed (95 % interval)", "peak", "reason")
_RIGHT_ALIGNED = frozenset({"samples/s", "peak"})
_WIDEST_REASON = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One candidate, in words for people."""

    mark: str
    """`*` for the winner, else empty."""
    candidate_id: str
    status: str
    samples_per_s: str
    confirmed: str
    peak: str
    reason: str

    def cells(self) -> tuple[str, ...]:
        """The cells in the order of the headings."""
        return (
            self.mark,
            self.candidate_id,
            self.status,
            self.samples_per_s,
            self.confirmed,
            self.peak,
            self.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Candidates that ended without figures for the same cause."""

    cause: str
    count: int
    example: str
    """The reason of the first of them."""


def render_report(records: Sequence[TrialRecord], *, selection: Selection | None) -> str:
    """The whole report: budget, table, stages, causes, predictions, winner, runner-up, Pareto front, flagged losses."""
    parts = [f"memory budget a worker: {format_bytes(records[0].memory_budget_bytes)}"] if records else []
    parts.append(render_table(results_table(records, selection=selection)))
    parts += axes_legend({each.candidate_id: json.loads(each.deepspeed) for each in records})
    comparison = render_side_by_side(records)
    if comparison:
        parts.append(comparison)
    by_workers = render_scaling(records)
    if by_workers:
        parts.append(by_workers)
    causes = failures_by_cause(records)
    if causes:
        parts.append("Without figures, by cause:\n" + "\n".join(_cause_line(each) for each in causes))
    prediction = render_prediction(records)
    if prediction:
        parts.append(prediction)
    if selection:
        parts.append(render_selection(selection))
    return "\n\n".join(parts) + "\n"


def results_table(records: Iterable[TrialRecord], *, selection: Selection | None) -> list[Row]:
    """A row a candidate: the winner, then the completed ones from fast to slow, then the others by status."""
    winner = selection.winner if selection else None
    ordered = sorted(
        records,
        key=lambda record: (
            record.candidate_id != winner,
            _STATUS_ORDER.index(record.status),
            not record.confirmed,
            -best_known_rate(record) if record.samples_per_s is not None else 0.0,
            record.candidate_id,
        ),
    )
    lost = selection.lost if selection else {}
    return [
        _row(record, is_winner=record.candidate_id == winner, lost=lost.get(record.candidate_id, ""))
        for record in ordered
    ]


def render_table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    lines = [_HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if heading in _RIGHT_ALIGNED else cell.ljust(width)
            for cell, width, heading in zip(line, widths, _HEADINGS, strict=True)
        ).rstrip()
        for line in lines
    )


def failures_by_cause(records: Iterable[TrialRecord]) -> list[Cause]:
    """Launched candidates without figures, grouped by what ended them, the most frequent first.

    Reasons that differ only in numbers, or in the rank and node that failed, are one cause.
    """
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for record in records:
        if record.status in (TrialStatus.OOM, TrialStatus.FAILED, TrialStatus.TIMED_OUT):
            groups.setdefault((_kind(record), _without_numbers(record)), []).append(record)
    causes = [Cause(cause=kind, count=len(members), example=members[0].reason) for (kind, _), members in groups.items()]
    return sorted(causes, key=lambda each: -each.count)


def render_selection(selection: Selection) -> str:
    """The winner, the runner-up and why it lost, the Pareto front, and what flagged candidates would have given."""
    if selection.winner is None:
        return f"No winner: {selection.none_because or 'no candidate completed within the budget'}."
    low, high = selection.samples_per_s_low, selection.samples_per_s_high
    interval = f" (95 % interval {low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    state = "confirmed" if selection.confirmed else "UNCONFIRMED"
    lines = [f"winner: {selection.winner}, {selection.samples_per_s:.2f} samples/s{interval}, {state}"]
    if selection.objective.goal is not Goal.SAMPLES_PER_S and selection.value is not None:
        lines.append(f"by the objective: {format_value(selection.value, selection.objective)}")
    if selection.runner_up:
        lines.append(f"runner-up: {selection.runner_up}: {selection.runner_up_reason}")
    lines.append(f"Pareto front (samples/s against peak memory): {', '.join(selection.pareto_front)}")
    for flagged in selection.loss_flagged:
        gain = f", {flagged.over_winner * 100:+.1f} % against the winner" if flagged.over_winner is not None else ""
        lines.append(
            f"loss differs, cannot win: {flagged.candidate_id} would give {flagged.samples_per_s:.2f} samples/s{gain}"
        )
    return "\n".join(lines)


def _row(record: TrialRecord, *, is_winner: bool, lost: str) -> Row:
    reason = (lost if record.status is TrialStatus.COMPLETED else record.reason) or record.reason
    return Row(
        mark="*" if is_winner else "",
        candidate_id=record.candidate_id,
        status=_kind(record),
        samples_per_s="-" if record.samples_per_s is None else f"{record.samples_per_s:.2f}",
        confirmed=_confirmed(record),
        peak=format_bytes(record.peak_memory_bytes),
        reason=reason if len(reason) <= _WIDEST_REASON else reason[: _WIDEST_REASON - 3] + "...",
    )


def _confirmed(record: TrialRecord) -> str:
    low, high = record.confirmed_samples_per_s_low, record.confirmed_samples_per_s_high
    if record.confirmed_samples_per_s is None or low is None or high is None:
        return "-"
    return f"{record.confirmed_samples_per_s:.2f} ({low:.2f} to {high:.2f})"


def _kind(record: TrialRecord) -> str:
    kind = record.failure_kind or record.memory_kind or record.skip_rule
    return f"{record.status} ({kind})" if kind else str(record.status)


def _without_numbers(record: TrialRecord) -> str:
    """Out of memory is one cause however many bytes it took; elsewhere the words tell causes apart."""
    if record.status is TrialStatus.OOM:
        return ""
    return re.sub(r"\d+", "#", re.sub(r"^rank \d+( on [^:]+)?: ", "", record.reason))


def _cause_line(cause: Cause) -> str:
    return f"{cause.count:4d} x {cause.cause}, e.g. {cause.example}"
