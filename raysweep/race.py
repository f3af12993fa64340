"""Compares a candidate with the best while it runs: stops it where it is behind, measures on where it is close."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from raysweep.budget import MeasurementWindow
from raysweep.measurement import interquartile_range, median_log_error

Z_975 = 1.96
CLOSE = 0.01
"""Rates that differ by no more than this need not be told apart."""


class WindowEnd(StrEnum):
    """Why a timed window ended."""

    FULL = "full"
    """It was as long as planned, and there was nothing to compare with."""
    LOST = "lost"
    """Even the fast end of the candidate's interval is below the share of the best: stopped."""
    SEPARATED = "separated"
    """As long as planned or extended, and told from the best."""
    TIE = "tie"
    """Extended as far as it may be, and not told from the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The best so far, in step times of the candidate that runs. All ranks see the same times, so all agree."""

    best_step_time_s: float
    """At which the candidate would be as fast as the best: its global batch / the best rate in samples/s."""
    best_log_error: float
    """Standard error of its logarithm."""
    least_share: float = 0.9
    """Of the best rate, which the fast end of the candidate's 95 % interval has to reach."""
    after_steps: int = 5
    """Timed steps before it may be stopped."""
    most_windows: int = 3
    """How many times as long as planned the timed window may become."""
    longest_s: float = math.inf
    """Timed seconds past which a window is not extended, so that no extension runs into the deadline."""

    def is_lost(self, step_times_s: Sequence[float]) -> bool:
        """Whether the candidate cannot be near the best."""
        if len(step_times_s) < self.after_steps:
            return False
        slowness, error = self._against_best(step_times_s)
        return slowness - Z_975 * error > -math.log(self.least_share)

    def is_separated(self, step_times_s: Sequence[float]) -> bool:
        """Whether candidate and best differ beyond the spread of their steps, or are sure to be within 1 %."""
        slowness, own_error = self._against_best(step_times_s)
        half_width = Z_975 * math.hypot(own_error, self.best_log_error)
        return abs(slowness) > half_width or abs(slowness) + half_width <= math.log1p(CLOSE)

    def _against_best(self, step_times_s: Sequence[float]) -> tuple[float, float]:
        """Logarithm of the median over the best's step time, and the standard error of that median's logarithm."""
        median_s = statistics.median(step_times_s)
        error = median_log_error(median=median_s, iqr=interquartile_range(step_times_s), count=len(step_times_s))
        return math.log(median_s / self.best_step_time_s), error


def window_end(step_times_s: Sequence[float], window: MeasurementWindow, race: Race | None) -> WindowEnd | None:
    """Whether a timed window is over after these steps, and why; None where more are to be timed."""
    if race is not None and race.is_lost(step_times_s):
        return WindowEnd.LOST
    if not _holds(step_times_s, window):
        return None
    if race is None or not step_times_s:
        return WindowEnd.FULL
    if race.is_separated(step_times_s):
        return WindowEnd.SEPARATED
    is_spent = _holds(step_times_s, window.times(race.most_windows)) or math.fsum(step_times_s) >= race.longest_s
    return WindowEnd.TIE if is_spent else None


def _holds(step_times_s: Sequence[float], window: MeasurementWindow) -> bool:
    """Whether the steps fill a window: in their number and in seconds."""
    return len(step_times_s) >= window.measured_steps and math.fsum(step_times_s) >= window.measured_s
