"""What is known of a candidate without running it, and how likely it is to fit, as a guided search takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from raysweep.candidate import Candidate
from raysweep.search.step_time import Array
from raysweep.step_work import StepWork

LEAST_LOG_SD = 0.003
"""A peak is never predicted more closely than this, relative to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What is known of a candidate without running it."""

    candidate: Candidate
    work: StepWork
    global_batch_size: int
    predicted_memory_bytes: int | None = None
    memory_band: float = 0.0
    """The peak is expected within predicted_memory_bytes x (1 +- band), two standard deviations."""


def fit_probability(
    prospects: Sequence[Prospect], *, peaks_bytes: Mapping[int, int], budget_bytes: int | None
) -> Array:
    """The probability of each to stay within the budget; 1 where budget or prediction is not known.

    The logarithm of a true peak is taken as normal around that of the predicted one, which is moved by what the
    measured peaks (index -> bytes) showed so far. The prediction itself counts as one such peak, right on the mark.
    """
    if budget_bytes is None:
        return np.ones(len(prospects))
    predicted = [math.log(each.predicted_memory_bytes or budget_bytes) for each in prospects]
    errors = [
        math.log(peak) - predicted[index]
        for index, peak in peaks_bytes.items()
        if prospects[index].predicted_memory_bytes
    ]
    count = len(errors) + 1
    shift = sum(errors) / count
    squares = sum((error - shift) ** 2 for error in errors)
    sds = [math.sqrt(((each.memory_band / 2) ** 2 + squares) / count) for each in prospects]
    room = np.array([math.log(budget_bytes) - each - shift for each in predicted])
    known = np.array([bool(each.predicted_memory_bytes) for each in prospects])
    return np.where(known, norm.cdf(room / np.maximum(sds, LEAST_LOG_SD)), 1.0)
