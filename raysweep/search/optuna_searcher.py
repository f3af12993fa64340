"""Optuna's TPE as a searcher: it learns where throughput is high and memory suffices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from raysweep.candidate import Candidate
from raysweep.search.searcher import CandidateSearcher
from raysweep.trial import Measurement, TrialStatus

MISSES_ALLOWED = 20
"""Proposals in a row that may fall on what cannot be launched; then the first candidate that is left is taken."""
LEFT_ALONE = "left alone"
STARTUP_TRIALS = 5
"""Random ones before TPE has anything to go by; Optuna's 10 are most of the dozen that a sweep is to need."""


class OptunaSearcher(CandidateSearcher):
    """Proposes what Optuna's TPE asks for, where that can still be launched.

    Memory is a constraint of Optuna's, peak / budget - 1, above 0 where a candidate does not fit: TPE prefers what
    fits, and an out-of-memory is not taken for a throughput. What the plan pruned is told to it in advance.

    Args:
        candidates: what may be launched, in seeded random order.
        pruned: what the plan has ruled out.
        memory_budget_bytes: the budget a worker; None where it is not known.
        seed: of TPE's own draws.
        options: of `CandidateSearcher`.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        pruned: Sequence[Candidate] = (),
        memory_budget_bytes: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(candidates, **options)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._budget_bytes = memory_budget_bytes
        self._axes = _axes([*candidates, *pruned])
        self._study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=len(pruned) + STARTUP_TRIALS, multivariate=True
            ),
        )
        for candidate in pruned:
            self._tell(candidate, samples_per_s=0.0, excess=1.0)

    def choose(self) -> Candidate:
        """See `CandidateSearcher.choose`."""
        known = {_key(self._values(candidate)): candidate for candidate in self.left}
        for _ in range(MISSES_ALLOWED):
            trial = self._study.ask(self._axes)
            candidate = known.get(_key(trial.params))
            # Asked and never told, a trial would count as running; what was launched is told by `learn`.
            self._study.tell(trial, state=TrialState.FAIL)
            if candidate is not None:
                return candidate
        return self.left[0]

    def learn(self, candidate: Candidate, measurement: Measurement) -> None:
        """See `CandidateSearcher.learn`."""
        figures, peak_bytes = measurement.figures, measurement.peak_memory_bytes
        excess = -1.0 if figures else 1.0
        if (
            peak_bytes
            and self._budget_bytes
            and measurement.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED, TrialStatus.OOM)
        ):
            excess = peak_bytes / self._budget_bytes - 1
        self._tell(candidate, samples_per_s=figures.samples_per_s if figures else 0.0, excess=excess)

    def _tell(self, candidate: Candidate, *, samples_per_s: float, excess: float) -> None:
        self._study.add_trial(
            optuna.trial.create_trial(
                params=self._values(candidate),
                distributions=self._axes,
                value=samples_per_s,
                constraints={"memory": excess},
            )
        )

    def _values(self, candidate: Candidate) -> dict[str, Any]:
        """On every axis of the space: where an axis does not apply to a candidate, it is left alone."""
        values = _values(candidate)
        return {name: values.get(name, LEFT_ALONE) for name in self._axes}


def _values(candidate: Candidate) -> dict[str, Any]:
    """A candidate's place on every axis. Values of DeepSpeed's keys may be lists, so they go by their text."""
    return {
        "zero_stage": candidate.zero_stage,
        "activation_checkpoint_interval": candidate.activation_checkpoint_interval,
        "micro_batch_size_per_gpu": candidate.micro_batch_size_per_gpu,
        "gradient_accumulation_steps": candidate.gradient_accumulation_steps,
    } | {key: repr(value) for key, value in candidate.further_axes.items()}


def _axes(candidates: Sequence[Candidate]) -> dict[str, BaseDistribution]:
    """Each axis with the values that occur. Accumulation is one only where it does not follow from the micro-batch."""
    values = [_values(candidate) for candidate in candidates]
    names = dict.fromkeys(name for each in values for name in each)
    return {name: CategoricalDistribution(sorted({each.get(name, LEFT_ALONE) for each in values})) for name in names}


def _key(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(values.items()))
