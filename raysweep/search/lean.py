"""Guided search for the least memory: among what is fast enough, a step-time model proposes what could need least."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from raysweep.candidate import Candidate
from raysweep.race import ToBeat
from raysweep.search.guided import HARDLY_FITS, SEEDS, WORTH_SHARE, GuidedSearcher
from raysweep.search.step_time import Array
from raysweep.units import format_bytes


class LeanSearcher(GuidedSearcher):
    """Proposes what is expected to save most memory, times the probabilities that it is fast enough and that it fits.

    The seeds are those of `GuidedSearcher`: they tell the coefficients of the step time apart. The search ends when
    nothing that is left could both need 1 % less memory than the leanest that is fast enough and be fast enough itself.

    Args:
        least_rate: samples/s that a candidate has to reach.
        options: of `GuidedSearcher`; every prospect has a predicted peak.
    """

    def __init__(self, *arguments: Any, least_rate: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert all(each.predicted_memory_bytes for each in self._prospects), "peaks are what is compared"
        self._least_rate = least_rate

    def choose(self) -> Candidate:
        """See `CandidateSearcher.choose`."""
        if len(self._observed) < SEEDS:
            return super().choose()
        reach, fits, saving = self._reach(), self._fit_probability(), self._saving()
        worth = reach * fits * (1.0 if saving is None else np.maximum(saving, 0.0) + 1e-9)
        left = self._indices_left()
        return self._prospects[left[int(np.argmax(worth[left]))]].candidate

    def to_beat(self) -> ToBeat | None:
        """See `CandidateSearcher.to_beat`: not the fastest, but the rate that suffices."""
        noise = self._model.fit(self._observed).noise
        return ToBeat(samples_per_s=self._least_rate, launch_log_sd=noise)

    def look_for_end(self) -> None:
        """Stop also where nothing that is left can be leaner and fast enough."""
        super(GuidedSearcher, self).look_for_end()
        leanest = self._leanest()
        if self.stopped or leanest is None or len(self._observed) < SEEDS:
            return
        saving, left = self._saving(), self._indices_left()
        assert saving is not None, "there is a leanest"
        lean = [index for index in left if saving[index] > WORTH_SHARE]
        fast, fits = self._at_most() >= self._least_rate, self._fit_probability() >= HARDLY_FITS
        if any(fast[index] and fits[index] for index in lean):
            return
        best = self._prospects[leanest].candidate.candidate_id
        text = f"{best} with {format_bytes(self._peaks_bytes[leanest])}"
        if not lean:
            self.stop(f"nothing left is predicted to need less memory than {text}")
            return
        next_one = max(lean, key=lambda index: self._at_most()[index])
        self.stop(
            f"nothing left that needs less memory than {text} can reach {self._least_rate:g} samples/s: next was "
            f"{self._prospects[next_one].candidate.candidate_id}, {self._rate_text(next_one)}"
        )

    def bounded(self) -> dict[str, str]:
        """See `CandidateSearcher.bounded`: those whose band ends below the rate that suffices."""
        if len(self._observed) < SEEDS:
            return {}
        at_most = self._at_most()
        return {
            self._prospects[index].candidate.candidate_id: (
                f"not launched: {self._rate_text(index)}, below the {self._least_rate:g} that the objective asks for"
            )
            for index in self._indices_left()
            if at_most[index] < self._least_rate
        }

    def _reach(self) -> Array:
        """The probability of each to be fast enough."""
        forecast = self._model.fit(self._observed)
        ahead = np.log(self._samples / forecast.step_time_s / self._least_rate)
        return np.asarray(norm.cdf(ahead / forecast.log_sd))

    def _at_most(self) -> Array:
        return np.asarray(self._samples / self._model.fit(self._observed).fastest_s())

    def _rate_text(self, index: int) -> str:
        return f"at most {self._at_most()[index]:.2f} samples/s (two standard deviations)"

    def _leanest(self) -> int | None:
        """The measured candidate that is fast enough and needs least; None before there is one."""
        fast = [
            index
            for index, seen in self._observed.items()
            if index in self._peaks_bytes and self._samples[index] / seen.step_time_s >= self._least_rate
        ]
        return min(fast, key=lambda index: self._peaks_bytes[index], default=None)

    def _saving(self) -> Array | None:
        """Logarithm of the leanest one's peak over the peak that each is expected to have."""
        leanest = self._leanest()
        if leanest is None:
            return None
        predicted = np.log([float(each.predicted_memory_bytes or 1) for each in self._prospects])
        errors = [math.log(peak) - predicted[index] for index, peak in self._peaks_bytes.items()]
        # As in `fit_probability`, the prediction counts as one peak, right on the mark.
        return np.asarray(math.log(self._peaks_bytes[leanest]) - predicted - sum(errors) / (len(errors) + 1))
