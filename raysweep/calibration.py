"""Calibrates memory predictions by measured trials: a factor, a constant, and a band that held-out trials keep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

COVERAGE = 0.95
"""Share of further trials that the band is to hold, where there are trials enough to promise it."""
LEAST_FOR_FACTOR = 3
LEAST_FOR_CONSTANT = 8
"""Fewer trials give no factor, or no constant beside it: they would follow single trials."""
MOST_LEFT_OUT = 100
"""Trials that are left out one by one."""
LEAST_SPREAD = 1.5
"""Largest over smallest prediction from which on a constant can be told from a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One trial: what was predicted and what was measured, in bytes; both above 0."""

    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How predictions are to be read on one kind of device with one number of workers."""

    factor: float = 1.0
    constant_bytes: float = 0.0
    band: float = math.inf
    """Of a further trial the measured peak lies within calibrated x (1 +- band)."""
    coverage: float = 0.0
    """Probability of that: split conformal prediction, with errors of trials that were left out of the fit."""
    trials: int = 0

    def of(self, predicted_bytes: float) -> float:
        """The calibrated prediction in bytes."""
        return self.factor * predicted_bytes + self.constant_bytes


def calibrate(pairs: Sequence[Pair]) -> Calibration:
    """Fit a factor and a constant in relative error, and the band by leaving out one trial at a time.

    Of more than `MOST_LEFT_OUT` trials every second one is left out of one fit. With n trials the largest left-out
    error covers a further one with probability n / (n + 1) (split and jackknife conformal prediction; Vovk and others);
    from 19 on the band is the quantile that covers 95 %.
    """
    if not pairs:
        return Calibration()
    factor, constant_bytes = _fit(pairs)
    if len(pairs) > MOST_LEFT_OUT:
        half = _fit(pairs[::2])
        errors = sorted(_error(pair, *half) for pair in pairs[1::2])
    else:
        errors = sorted(_error(pair, *_fit([*pairs[:index], *pairs[index + 1 :]])) for index, pair in enumerate(pairs))
    rank = min(len(errors), math.ceil(COVERAGE * (len(errors) + 1)))
    return Calibration(
        factor=factor,
        constant_bytes=constant_bytes,
        band=errors[rank - 1],
        coverage=min(COVERAGE, rank / (len(errors) + 1)),
        trials=len(pairs),
    )


def _error(pair: Pair, factor: float, constant_bytes: float) -> float:
    return abs(pair.measured_bytes / (factor * pair.predicted_bytes + constant_bytes) - 1)


def _fit(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Factor and constant; the factor alone is the median ratio, which one odd trial does not move."""
    if len(pairs) < LEAST_FOR_FACTOR:
        return 1.0, 0.0
    ratio = statistics.median(pair.measured_bytes / pair.predicted_bytes for pair in pairs)
    predictions = [pair.predicted_bytes for pair in pairs]
    if len(pairs) < LEAST_FOR_CONSTANT or max(predictions) < LEAST_SPREAD * min(predictions):
        return ratio, 0.0
    # Least squares of (factor x predicted + constant) / measured = 1.
    columns = [(pair.predicted_bytes / pair.measured_bytes, 1 / pair.measured_bytes) for pair in pairs]
    aa, ab = sum(a * a for a, _ in columns), sum(a * b for a, b in columns)
    bb, a1, b1 = sum(b * b for _, b in columns), sum(a for a, _ in columns), sum(b for _, b in columns)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:
        return ratio, 0.0
    factor, constant_bytes = (a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant
    smallest_bytes = factor * min(predictions) + constant_bytes
    return (factor, constant_bytes) if factor > 0 and smallest_bytes > 0 else (ratio, 0.0)
