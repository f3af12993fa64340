"""Compares two sweeps candidate by candidate: what moved beyond the noise, and what differs around them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysweep.results.finalists import search_log_ratio
from raysweep.results.interval import Interval, is_tie
from raysweep.results.records import TrialRecord
from raysweep.trial import TrialStatus

FEWEST_FOR_A_SPREAD = 5
"""Common candidates from which their own spread says what noise is."""
MEMORY_MARGIN = 0.01
"""Peaks that differ by no more are equal: the budget's own ties use the same."""
_SIGMAS = 1.96
_SIGMA_OF_MAD = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One candidate that both sweeps measured."""

    before: TrialRecord
    after: TrialRecord
    log_ratio: Interval
    """Of the second rate over the first."""
    confirmed: bool
    """Whether both rates are confirmed; else both are those of the search."""
    beyond_noise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sweeps, A and B."""

    moves: Sequence[Move]
    """In A's order."""
    drift: float | None
    """Median of the rates' ratios, B over A, less 1: what moved all alike. None where nothing is common."""
    spread: float | None
    """Robust standard deviation of the logarithm of the ratios around the drift; None for too few."""
    ended_otherwise: Sequence[tuple[TrialRecord, TrialRecord]]
    """Common candidates with another status."""
    peaks_moved: Sequence[tuple[TrialRecord, TrialRecord]]
    only_in_first: Sequence[str]
    only_in_second: Sequence[str]


def compare(first: Sequence[TrialRecord], second: Sequence[TrialRecord]) -> Comparison:
    """Compare the records of two sweeps.

    A rate has moved beyond the noise where its ratio, less what moved all candidates alike, is larger than its own
    95 % interval allows, and than 1.96 robust standard deviations of the ratios of all common candidates: a launch's
    own interval knows nothing of how much two processes differ. With fewer than five in common the interval alone
    decides, and nothing is taken off.
    """
    after = {record.candidate_id: record for record in second}
    before = {record.candidate_id: record for record in first}
    pairs = [(record, after[name]) for name, record in before.items() if name in after]
    measured = [pair for pair in pairs if all(each.status is TrialStatus.COMPLETED for each in pair)]
    ratios = [_log_ratio(*pair) for pair in measured]
    centres = [ratio.centre for ratio, _ in ratios]
    drift = statistics.median(centres) if centres else None
    spread = _spread(centres)
    return Comparison(
        moves=[
            Move(
                before=pair[0],
                after=pair[1],
                log_ratio=ratio,
                confirmed=confirmed,
                beyond_noise=_is_beyond(ratio, drift=drift or 0.0, spread=spread),
            )
            for pair, (ratio, confirmed) in zip(measured, ratios, strict=True)
        ],
        drift=None if drift is None else math.expm1(drift),
        spread=spread,
        ended_otherwise=[pair for pair in pairs if pair[0].status is not pair[1].status],
        peaks_moved=[pair for pair in measured if _peak_moved(*pair)],
        only_in_first=[name for name in before if name not in after],
        only_in_second=[name for name in after if name not in before],
    )


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted keys under which two plain mappings differ, with both values; None stands for a key that is not there."""
    found: list[tuple[str, Any, Any]] = []
    for key in dict.fromkeys([*first, *second]):
        one, other = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found.append((f"{prefix}{key}", one, other))
    return found


def _log_ratio(before: TrialRecord, after: TrialRecord) -> tuple[Interval, bool]:
    if not (before.confirmed and after.confirmed):
        return search_log_ratio(after, before), False
    assert before.confirmed_samples_per_s and after.confirmed_samples_per_s, "confirmed"
    centre = math.log(after.confirmed_samples_per_s / before.confirmed_samples_per_s)
    half_width = math.hypot(_half_width(before), _half_width(after))
    return Interval(centre=centre, low=centre - half_width, high=centre + half_width), True


def _half_width(record: TrialRecord) -> float:
    low, high = record.confirmed_samples_per_s_low, record.confirmed_samples_per_s_high
    return math.log(high / low) / 2 if low and high else math.inf


def _spread(centres: Sequence[float]) -> float | None:
    if len(centres) < FEWEST_FOR_A_SPREAD:
        return None
    middle = statistics.median(centres)
    return _SIGMA_OF_MAD * statistics.median(abs(each - middle) for each in centres)


def _is_beyond(ratio: Interval, *, drift: float, spread: float | None) -> bool:
    if spread is None:
        return not is_tie(ratio)
    left = Interval(centre=ratio.centre - drift, low=ratio.low - drift, high=ratio.high - drift)
    return not is_tie(left) and abs(left.centre) > _SIGMAS * spread


def _peak_moved(before: TrialRecord, after: TrialRecord) -> bool:
    one, other = before.peak_memory_bytes, after.peak_memory_bytes
    return one is not None and other is not None and abs(other - one) > MEMORY_MARGIN * one
