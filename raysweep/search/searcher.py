"""Searchers of Ray Tune's: what all of them share, and the one behind grid and random search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ray.tune.search import Searcher

from raysweep.candidate import Candidate
from raysweep.dominance import needs_no_less_memory
from raysweep.measurement import median_log_error
from raysweep.race import Race
from raysweep.serde import from_dict
from raysweep.trial import LaunchRequest, Measurement, TrialStatus

ALL_LAUNCHED = "every admitted candidate was launched"
LONGEST_SHARE_OF_DEADLINE = 0.25
"""Of a candidate's deadline, which a race may spend on its timed window; the rest is for the build and its steps."""


class CandidateSearcher(Searcher):  # type: ignore[misc]
    """Proposes candidates until they, the trials, or the seconds are used up.

    What needs no less memory than a candidate that ran out of it is never proposed. The clock is looked at between
    candidates: one that runs is not cut off, so its work is not lost.

    Args:
        candidates: what may be launched, in seeded random order.
        trials: the most launches; None for no limit.
        trials_spent: why nothing more comes once they are used up.
        seconds: how long to propose; None for no limit.
        racing: stop what falls behind the best while it runs.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        trials: int | None = None,
        trials_spent: str = "the budget of trials was spent",
        seconds: float | None = None,
        racing: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(metric="samples_per_s", mode="max")
        self.left = list(candidates)
        self._trials_left = trials
        self._trials_spent = trials_spent
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._launched: dict[str, Candidate] = {}
        self._racing = racing
        self._fastest: tuple[float, float] | None = None
        self.stopped = ""
        """Why nothing more is proposed; empty while something is."""

    @property
    def most_launches(self) -> int:
        """How many more launches there can be."""
        return len(self.left) if self._trials_left is None else min(len(self.left), self._trials_left)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Ray Tune's hook: the next candidate's id, or FINISHED."""
        self.look_for_end()
        if self.stopped:
            return str(Searcher.FINISHED)
        candidate = self.choose()
        self.left.remove(candidate)
        self._launched[trial_id] = candidate
        if self._trials_left is not None:
            self._trials_left -= 1
        return {"candidate_id": candidate.candidate_id}

    def choose(self) -> Candidate:
        """The next of those that are left; there is one."""
        raise NotImplementedError

    def learn(self, candidate: Candidate, measurement: Measurement) -> None:
        """Let a launch guide what is chosen next."""

    def look_for_end(self) -> None:
        """Stop where candidates, trials or seconds are used up."""
        if not self.left:
            self.stop(ALL_LAUNCHED)
        if self._trials_left == 0:
            self.stop(self._trials_spent)
        if self._end is not None and self._clock() >= self._end:
            self.stop("the time budget was spent")

    def in_race(self, request: LaunchRequest) -> LaunchRequest:
        """The request with the best so far to compare with, where there is one and this searcher races."""
        best = self.to_beat() if self._racing else None
        if best is None:
            return request
        rate, log_error = best
        candidate = request.candidate
        samples = request.workload.global_batch_of(
            candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
        )
        race = Race(
            best_step_time_s=samples / rate,
            best_log_error=log_error,
            longest_s=LONGEST_SHARE_OF_DEADLINE * request.deadline_s,
        )
        return replace(request, race=race)

    def to_beat(self) -> tuple[float, float] | None:
        """The best rate so far, in samples/s, and the standard error of its logarithm; None before there is one."""
        return self._fastest

    def bounded(self) -> dict[str, str]:
        """Candidate id -> why a bound on its throughput rules it out, of those that are left; empty without a model."""
        return {}

    def stop(self, reason: str) -> None:
        """Propose nothing more."""
        self.stopped = self.stopped or reason

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ray Tune's hook: what the launch showed, and what it proves of others."""
        candidate = self._launched.pop(trial_id, None)
        if candidate is not None and result and result.get("measurements"):
            self.knows(candidate, from_dict(Measurement, result["measurements"][-1]))

    def knows(self, candidate: Candidate, measurement: Measurement) -> None:
        """Take in a launch, also of an earlier run."""
        if measurement.status is TrialStatus.OOM:
            self.left = [other for other in self.left if not needs_no_less_memory(other, candidate)]
        figures = measurement.figures
        if measurement.status is TrialStatus.COMPLETED and figures:
            error = median_log_error(
                median=figures.step_time_s_median, iqr=figures.step_time_s_iqr, count=figures.measured_steps
            )
            self._fastest = max(self._fastest or (0.0, 0.0), (figures.samples_per_s, error))
        self.learn(candidate, measurement)

    def save(self, checkpoint_path: str) -> None:
        """Ray Tune's hook: resume goes by our own records, so there is nothing to keep."""

    def restore(self, checkpoint_path: str) -> None:
        """Ray Tune's hook; see `save`."""


class OrderedSearcher(CandidateSearcher):
    """Proposes candidates in the order given: grid and random search."""

    def choose(self) -> Candidate:
        """See `CandidateSearcher.choose`."""
        return self.left[0]
