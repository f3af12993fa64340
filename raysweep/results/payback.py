"""What the search cost, and after how much training its winner has earned that back."""

from __future__ import annotations

from collections.abc import Iterable

from raysweep.results.records import TrialRecord
from raysweep.trial import TrialStatus
from raysweep.units import format_seconds

STAGE_BY_DEFAULT = 3
"""What is reached for where nobody has measured."""


def payback(records: Iterable[TrialRecord], *, winner: str, wall_s: float) -> str:
    """A sentence; empty where nothing slower was measured to compare with.

    Training for T seconds in the other configuration takes T x rate_other / rate_winner in the winner's. The search has
    paid for itself once the difference is what the search took: T = wall / (1 - rate_other / rate_winner).

    Args:
        records: of the sweep; compared by their rates in the search, and only those with as many workers.
        winner: its candidate id.
        wall_s: what the sweep took.
    """
    completed = {each.candidate_id: each for each in records if each.status is TrialStatus.COMPLETED}
    best = completed[winner]
    others = [each for each in completed.values() if each.candidate_id != winner and each.world_size == best.world_size]
    default = [each for each in others if each.zero_stage == STAGE_BY_DEFAULT]
    other = max(default or others, key=_rate, default=None)
    if other is None or _rate(other) >= _rate(best):
        return ""
    share = _rate(other) / _rate(best)
    name = f"stage 3 at its best here, {other.candidate_id}" if default else other.candidate_id
    return (
        f"Pays for itself after {format_seconds(wall_s / (1 - share))} of training, against {name}, "
        f"{(1 - share) * 100:.0f} % slower in the search"
    )


def _rate(record: TrialRecord) -> float:
    return record.samples_per_s or 0.0
