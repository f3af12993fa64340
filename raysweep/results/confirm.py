"""What the confirmation rounds showed of each finalist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raysweep.budget import CONFIRM_ROUNDS
from raysweep.results.interval import Interval, paired_log_ratio, rate_interval
from raysweep.trial import Measurement, Phase, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """One finalist's rounds."""

    candidate_id: str
    samples_per_s: Mapping[int, float]
    """Round -> rate of that round."""
    memory_pressure: bool
    failure: str
    """Why the finalist was demoted; empty where it was not."""

    @property
    def confirmed(self) -> bool:
        """Whether it completed in enough rounds and failed in none."""
        return not self.failure and len(self.samples_per_s) >= CONFIRM_ROUNDS

    def interval(self) -> Interval:
        """Samples per second over the rounds: geometric mean and 95 % interval."""
        return rate_interval(list(self.samples_per_s.values()))

    def log_ratio(self, reference: Confirmation) -> Interval:
        """Logarithm of this rate over the reference's, paired by round: a round's two shared a process."""
        shared = sorted(set(self.samples_per_s) & set(reference.samples_per_s))
        return paired_log_ratio(
            [self.samples_per_s[each] for each in shared], [reference.samples_per_s[each] for each in shared]
        )


def confirmations(measurements: Iterable[Measurement]) -> dict[str, Confirmation]:
    """Candidate id -> its confirmation, from the last launch of each round.

    A launch that was cut off because the sweep's own time ran out says nothing of the finalist.
    """
    rounds: dict[str, dict[int, Measurement]] = defaultdict(dict)
    for measurement in measurements:
        if measurement.phase is Phase.CONFIRM and measurement.status is not TrialStatus.TIMED_OUT:
            rounds[measurement.candidate_id][measurement.round] = measurement
    return {candidate_id: _confirmation(candidate_id, by_round) for candidate_id, by_round in rounds.items()}


def demoted(measurements: Iterable[Measurement]) -> frozenset[str]:
    """Finalists that failed in confirmation; the next ones take their place."""
    return frozenset(each.candidate_id for each in confirmations(measurements).values() if each.failure)


def _confirmation(candidate_id: str, by_round: Mapping[int, Measurement]) -> Confirmation:
    figures = {number: each.figures for number, each in sorted(by_round.items()) if each.figures is not None}
    failed = [(number, each) for number, each in sorted(by_round.items()) if each.status is not TrialStatus.COMPLETED]
    return Confirmation(
        candidate_id=candidate_id,
        samples_per_s={number: each.samples_per_s for number, each in figures.items()},
        memory_pressure=any(each.memory_pressure for each in figures.values()),
        failure="; ".join(f"{each.status} in round {number}: {each.reason}" for number, each in failed[:1]),
    )
