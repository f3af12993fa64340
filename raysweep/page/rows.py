"""The table of candidates as values: one row each, the same in HTML, Markdown and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysweep.page.facts import ReportFacts
from raysweep.results.records import TrialRecord
from raysweep.results.report import results_table
from raysweep.results.worth import best_known_rate
from raysweep.trial import TrialStatus
from raysweep.units import MIB

HEADINGS = (
    "candidate",
    "stage",
    "interval",
    "micro-batch",
    "accumulation",
    "status",
    "samples/s (search)",
    "samples/s (confirmed)",
    "time against the winner",
    "peak (MiB)",
    "predicted (MiB)",
    "reason",
)
NUMERIC = frozenset(HEADINGS) - {"candidate", "status", "reason"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One value, and how it is shown."""

    value: float | str | None
    """What is sorted by; None where there is no value."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A candidate's row."""

    candidate_id: str
    status: str
    is_winner: bool
    cells: Sequence[Cell]
    """In the order of the headings."""


def table_rows(facts: ReportFacts) -> list[TableRow]:
    """The winner first, then the completed from fast to slow, then the others by status."""
    by_id, lost = facts.by_id, facts.selection.lost
    winner = facts.winner
    return [
        _row(by_id[row.candidate_id], row.status, winner, lost.get(row.candidate_id, ""))
        for row in results_table(facts.records, selection=facts.selection)
    ]


def _row(record: TrialRecord, status: str, winner: TrialRecord | None, lost: str) -> TableRow:
    rate = best_known_rate(record) if record.status is TrialStatus.COMPLETED else None
    best = best_known_rate(winner) if winner else None
    # Confirmed figures compare with confirmed ones, those of the search with each other.
    if winner and rate and not (record.confirmed and winner.confirmed):
        rate, best = record.samples_per_s, winner.samples_per_s
    reason = (lost if record.status is TrialStatus.COMPLETED else record.reason) or record.reason
    return TableRow(
        candidate_id=record.candidate_id,
        status=status,
        is_winner=record is winner,
        cells=(
            Cell(record.candidate_id, record.candidate_id),
            *(
                Cell(value, str(value))
                for value in (
                    record.zero_stage,
                    record.activation_checkpoint_interval,
                    record.micro_batch_size_per_gpu,
                    record.gradient_accumulation_steps,
                )
            ),
            Cell(status, status),
            _number(record.samples_per_s),
            _number(record.confirmed_samples_per_s),
            _number(best / rate if rate and best else None),
            _number(_mib(record.peak_memory_bytes), digits=1),
            _number(_mib(record.estimated_memory_bytes), digits=1),
            Cell(reason, reason),
        ),
    )


def _number(value: float | None, *, digits: int = 2) -> Cell:
    return Cell(value, "" if value is None else f"{value:.{digits}f}")


def _mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB
