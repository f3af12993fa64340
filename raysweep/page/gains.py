"""By how much the winner is faster than what would have been taken without a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raysweep.page.facts import ReportFacts
from raysweep.results.finalists import search_log_ratio
from raysweep.results.interval import is_tie
from raysweep.results.records import TrialRecord
from raysweep.results.worth import search_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The winner against one yardstick, by figures of the search."""

    against: str
    candidate_id: str
    """Empty where nothing was measured, and for the median."""
    ratio: float | None
    """The winner's rate over the yardstick's."""
    told: str
    """In words: the difference, or why there is none."""


def gains(facts: ReportFacts) -> list[Gain]:
    """Against plain data parallelism, stage 3 with every block checkpointed, and the median candidate.

    Of those that have as many workers as the winner.
    """
    winner = facts.winner
    if winner is None:
        return []
    return [
        _against(facts, winner, "plain data parallelism (stage 0)", lambda record: record.zero_stage == 0),
        _against(
            facts,
            winner,
            "stage 3 with every block checkpointed",
            lambda record: record.zero_stage == 3 and record.activation_checkpoint_interval == 1,
        ),
        _against_median(facts, winner),
    ]


def _against(facts: ReportFacts, winner: TrialRecord, name: str, belongs: Callable[[TrialRecord], bool]) -> Gain:
    kind = [record for record in _peers(facts.records, winner) if belongs(record)]
    measured = [record for record in _peers(facts.completed, winner) if belongs(record)]
    if not measured:
        why = kind[0].reason if kind else "not in the space"
        return Gain(against=name, candidate_id="", ratio=None, told=f"not measured: {why}")
    best = max(measured, key=search_rate)
    if best is winner:
        return Gain(against=name, candidate_id=best.candidate_id, ratio=1.0, told="is the winner")
    ratio = search_rate(winner) / search_rate(best)
    tie = ", within the noise" if is_tie(search_log_ratio(winner, best)) else ""
    return Gain(against=name, candidate_id=best.candidate_id, ratio=ratio, told=f"{_percent(ratio)} in the search{tie}")


def _against_median(facts: ReportFacts, winner: TrialRecord) -> Gain:
    peers = _peers(facts.completed, winner)
    name = f"the median of {len(peers)} measured candidates"
    ratio = search_rate(winner) / statistics.median(search_rate(record) for record in peers)
    return Gain(against=name, candidate_id="", ratio=ratio, told=f"{_percent(ratio)} in the search")


def _peers(records: Iterable[TrialRecord], winner: TrialRecord) -> list[TrialRecord]:
    return [record for record in records if record.world_size == winner.world_size]


def _percent(ratio: float) -> str:
    return f"{abs(ratio - 1) * 100:.1f} % {'faster' if ratio >= 1 else 'slower'}"
