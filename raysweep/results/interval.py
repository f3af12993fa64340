"""Confidence intervals of rates and of their ratios, and the one definition of a tie."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

TIE_MARGIN = 0.01
"""Two rates that differ by no more than this count as equal, however sure the difference is."""

# Student's t at 0.975 for 1, 2, ... degrees of freedom; a confirmation has two.
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z_975 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % interval and its centre."""

    centre: float
    low: float
    high: float

    def shifted(self, by: float) -> Interval:
        """The same, moved."""
        return Interval(centre=self.centre + by, low=self.low + by, high=self.high + by)

    def exp(self) -> Interval:
        """From logarithms back to rates or ratios."""
        return Interval(centre=math.exp(self.centre), low=math.exp(self.low), high=math.exp(self.high))


def t_interval(values: Sequence[float]) -> Interval:
    """Mean and its 95 % interval by Student's t; unbounded for a single value, which says nothing of the spread."""
    centre = statistics.fmean(values)
    freedom = len(values) - 1
    if freedom < 1:
        return Interval(centre=centre, low=-math.inf, high=math.inf)
    quantile = _T_975[freedom - 1] if freedom <= len(_T_975) else _Z_975
    half_width = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(centre=centre, low=centre - half_width, high=centre + half_width)


def rate_interval(rates: Sequence[float]) -> Interval:
    """Geometric mean of repeated rates with its 95 % interval: the order of two means is that of their mean ratio."""
    return t_interval([math.log(rate) for rate in rates]).exp()


def paired_log_ratio(rates: Sequence[float], reference_rates: Sequence[float]) -> Interval:
    """Logarithm of rate over reference, pair by pair; unbounded where there is no pair."""
    logs = [math.log(rate / reference) for rate, reference in zip(rates, reference_rates, strict=True)]
    return t_interval(logs) if logs else Interval(centre=0.0, low=-math.inf, high=math.inf)


def normal_interval(centre: float, standard_error: float) -> Interval:
    """95 % interval of a normal estimate."""
    half_width = _Z_975 * standard_error
    return Interval(centre=centre, low=centre - half_width, high=centre + half_width)


def is_tie(log_ratio: Interval) -> bool:
    """Whether two rates are equal within the noise: the interval of their ratio contains 1, or lies within +-1 %."""
    contains_one = log_ratio.low <= 0.0 <= log_ratio.high
    is_small = log_ratio.low >= math.log(1 - TIE_MARGIN) and log_ratio.high <= math.log(1 + TIE_MARGIN)
    return contains_one or is_small
