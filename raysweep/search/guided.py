"""Guided search: a step-time model proposes what could be fastest, and the search ends when nothing left can be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from raysweep.candidate import Candidate
from raysweep.measurement import median_log_error
from raysweep.probe import Probe
from raysweep.search.prior import rates
from raysweep.search.prospect import Prospect, fit_probability
from raysweep.search.searcher import CandidateSearcher
from raysweep.search.step_time import Array, Forecast, Observation, StepPoint, StepTimeModel
from raysweep.serde import from_dict, to_dict
from raysweep.trial import Measurement, TrialStatus

SEEDS = 5
"""Trials that are to tell the model's coefficients apart before it decides."""
PLAUSIBLE_SHARE = 0.75
"""A seed is predicted to reach at least this share of the best rate predicted, so that it may win, too."""
WORTH_SHARE = 0.01
"""By how much a candidate must be able to beat the best to be worth a trial: a tie's margin."""
LEAST_PROBABILITY = 1e-12
FAR_BELOW = -6.0
"""Standard deviations below the best from which the expected gain is taken by its asymptote, to keep an order."""
HARDLY_FITS = 0.05
"""Below this probability of fitting a candidate does not keep the search going."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outlook:
    """The rates of all prospects in samples/s, as they are predicted now, and the best of those measured."""

    predicted: Array
    at_most: Array
    best: int
    """Index of the measured candidate with the highest rate as fitted: noise of one launch does not make a best."""

    @property
    def best_rate(self) -> float:
        """Samples/s of the best as fitted, which all others are compared with."""
        return float(self.predicted[self.best])


class GuidedSearcher(CandidateSearcher):
    """Proposes what is expected to gain most over the best among what can fit, after a few seeds.

    The first seed is the one that is predicted to be fastest; each further seed is, of those predicted to be near the
    best, the one whose prediction is least certain, which is what tells the coefficients apart (greedy D-optimal
    design). Then goes first what is expected to gain most over the best (expected improvement: Jones, Schonlau and
    Welch, 1998), times the probability that it fits. The search ends when no upper end of a band is above the best by
    more than 1 %. The band is of two standard deviations: a statistical stop and no proof.

    Args:
        candidates: what may be launched.
        prospects: of these, and of those that an earlier run measured.
        device: device type of the workers.
        world_size: workers.
        memory_budget_bytes: the budget a worker; None where it is not known.
        options: of `CandidateSearcher`.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        prospects: Sequence[Prospect],
        device: str = "cpu",
        world_size: int = 1,
        memory_budget_bytes: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(candidates, **options)
        self._prospects = list(prospects)
        self._index = {each.candidate.candidate_id: index for index, each in enumerate(self._prospects)}
        self._samples = np.array([each.global_batch_size for each in self._prospects], dtype=np.float64)
        self._model = StepTimeModel(
            [StepPoint(candidate=each.candidate, work=each.work) for each in self._prospects], device=device
        )
        self._device, self._world_size = device, world_size
        self._probes: dict[str, Probe] = {}
        self._budget_bytes = memory_budget_bytes
        self._observed: dict[int, Observation] = {}
        self._peaks_bytes: dict[int, int] = {}

    def choose(self) -> Candidate:
        """See `CandidateSearcher.choose`."""
        forecast = self._model.fit(self._observed)
        fits = self._fit_probability()
        rates = self._samples / forecast.step_time_s
        if not self._observed:
            worth = rates * fits
        elif len(self._observed) < SEEDS:
            worth = self._worth_as_seed(forecast, rates, fits)
        else:
            ahead = np.log(rates / self._best_rate(forecast))
            worth = _log_expected_gain(ahead, forecast.log_sd) + np.log(np.maximum(fits, LEAST_PROBABILITY))
        left = self._indices_left()
        return self._prospects[left[int(np.argmax(worth[left]))]].candidate

    def _worth_as_seed(self, forecast: Forecast, rates: Array, fits: Array) -> Array:
        """Uncertainty of what may win; where nothing of that is left, the rate."""
        left = self._indices_left()
        likely = np.where(fits >= 0.5, rates, 0.0)
        is_plausible = likely >= PLAUSIBLE_SHARE * max(float(likely[left].max()), self._best_rate(forecast))
        worth = forecast.log_sd * fits * is_plausible
        return worth if worth[left].any() else rates * fits

    def learn(self, candidate: Candidate, measurement: Measurement) -> None:
        """See `CandidateSearcher.learn`."""
        index = self._index[candidate.candidate_id]
        figures = measurement.figures
        if measurement.probe:
            self._take_in({measurement.group_id: measurement.probe})
        if figures:
            error = median_log_error(
                median=figures.step_time_s_median, iqr=figures.step_time_s_iqr, count=figures.measured_steps
            )
            self._observed[index] = Observation(step_time_s=figures.step_time_s_median, log_error=error)
        if measurement.peak_memory_bytes and measurement.status in (
            TrialStatus.COMPLETED,
            TrialStatus.STOPPED,
            TrialStatus.OOM,
        ):
            self._peaks_bytes[index] = measurement.peak_memory_bytes

    def _take_in(self, probes: Mapping[str, Probe]) -> None:
        self._probes |= probes
        ordered = [self._probes[group_id] for group_id in sorted(self._probes)]
        self._model.start_from(rates(self._device, ordered, world_size=self._world_size))

    def look_for_end(self) -> None:
        """Stop also where nothing that is left can beat the best."""
        super().look_for_end()
        if self.stopped or len(self._observed) < SEEDS:
            return
        outlook = self._outlook()
        left = self._indices_left()
        fits = self._fit_probability()[left] >= HARDLY_FITS
        able = fits & (outlook.at_most[left] > outlook.best_rate * (1 + WORTH_SHARE))
        if not able.any():
            self.stop(self._why_nothing_left(outlook, left, fits))

    def bounded(self) -> dict[str, str]:
        """See `CandidateSearcher.bounded`: those whose band ends below the best."""
        if len(self._observed) < SEEDS:
            return {}
        outlook = self._outlook()
        return {
            self._prospects[index].candidate.candidate_id: (
                f"not launched: {self._bound(outlook, index)}, against {self._best_text(outlook)}"
            )
            for index in self._indices_left()
            if outlook.at_most[index] <= outlook.best_rate * (1 + WORTH_SHARE)
        }

    def to_beat(self) -> tuple[float, float] | None:
        """See `CandidateSearcher.to_beat`: the best as fitted, so that one lucky launch stops nobody."""
        if not self._observed:
            return None
        rates = self._samples / self._model.fit(self._observed).step_time_s
        best = max(self._observed, key=lambda index: float(rates[index]))
        return float(rates[best]), self._observed[best].log_error

    def _indices_left(self) -> list[int]:
        return [self._index[candidate.candidate_id] for candidate in self.left]

    def _best_rate(self, forecast: Forecast) -> float:
        """Samples/s of the best measured, as fitted."""
        return max(float(self._samples[index] / forecast.step_time_s[index]) for index in self._observed)

    def _outlook(self) -> _Outlook:
        forecast = self._model.fit(self._observed)
        predicted = self._samples / forecast.step_time_s
        return _Outlook(
            predicted=predicted,
            at_most=self._samples / forecast.fastest_s(),
            best=max(self._observed, key=lambda index: float(predicted[index])),
        )

    def _fit_probability(self) -> Array:
        return fit_probability(self._prospects, peaks_bytes=self._peaks_bytes, budget_bytes=self._budget_bytes)

    def _why_nothing_left(self, outlook: _Outlook, left: Sequence[int], fits: NDArray[np.bool_]) -> str:
        best = self._best_text(outlook)
        hopeless = int(np.sum(~fits))
        aside = f"; {hopeless} more hardly fit in memory" if hopeless else ""
        if hopeless == len(left):
            return f"nothing is left that is likely to fit in memory, after {best}"
        next_one = max(
            (index for index, able in zip(left, fits, strict=True) if able), key=lambda i: outlook.at_most[i]
        )
        name = self._prospects[next_one].candidate.candidate_id
        return (
            f"nothing left can beat {best} by more than 1 %: next was {name}, {self._bound(outlook, next_one)}{aside}"
        )

    def _bound(self, outlook: _Outlook, index: int) -> str:
        return (
            f"predicted {outlook.predicted[index]:.2f} samples/s, at most {outlook.at_most[index]:.2f} "
            f"(two standard deviations)"
        )

    def _best_text(self, outlook: _Outlook) -> str:
        name = self._prospects[outlook.best].candidate.candidate_id
        return f"{name} with {outlook.best_rate:.2f} samples/s as fitted"

    def save(self, checkpoint_path: str) -> None:
        """Ray Tune's hook: what was learnt and what is left, as JSON."""
        state = {
            "left": [candidate.candidate_id for candidate in self.left],
            "launched": {trial: candidate.candidate_id for trial, candidate in self._launched.items()},
            "trials_left": self._trials_left,
            "stopped": self.stopped,
            "observed": {
                self._prospects[index].candidate.candidate_id: [each.step_time_s, each.log_error]
                for index, each in self._observed.items()
            },
            "probes": {group_id: to_dict(probe) for group_id, probe in self._probes.items()},
            "peaks_bytes": {
                self._prospects[index].candidate.candidate_id: peak for index, peak in self._peaks_bytes.items()
            },
        }
        Path(checkpoint_path).write_text(json.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Ray Tune's hook: go on as the saved searcher would. The prospects must be the same."""
        state: Mapping[str, Any] = json.loads(Path(checkpoint_path).read_text())
        by_id = {name: self._prospects[index].candidate for name, index in self._index.items()}
        self.left = [by_id[name] for name in state["left"]]
        self._launched = {trial: by_id[name] for trial, name in state["launched"].items()}
        self._trials_left = state["trials_left"]
        self.stopped = state["stopped"]
        self._observed = {
            self._index[name]: Observation(step_time_s=seconds, log_error=error)
            for name, (seconds, error) in state["observed"].items()
        }
        self._peaks_bytes = {self._index[name]: peak for name, peak in state["peaks_bytes"].items()}
        self._take_in({group_id: from_dict(Probe, plain) for group_id, plain in state["probes"].items()})


def _log_expected_gain(ahead: Array, log_sd: Array) -> Array:
    """Logarithm of the mean of max(0, x) for a normal x with mean `ahead`."""
    u = ahead / log_sd
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log(norm.pdf(u) + u * norm.cdf(u))
        far = norm.logpdf(u) - 2 * np.log(np.abs(u))
    return np.asarray(np.log(log_sd) + np.where(u > FAR_BELOW, near, far))
