"""Sets predicted against measured peaks of a sweep, and says in words how far they lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from raysweep.calibration import Calibration, Pair, calibrate
from raysweep.results.records import TrialRecord
from raysweep.units import format_bytes

WORTH_A_CONSTANT_BYTES = 1024
"""A smaller constant is not told."""


def pairs_of(records: Iterable[TrialRecord]) -> list[Pair]:
    """Predicted and measured peak of every candidate that has both; out of memory included where its peak is known."""
    return [
        Pair(predicted_bytes=record.estimated_memory_bytes, measured_bytes=record.peak_memory_bytes)
        for record in records
        if record.estimated_memory_bytes and record.peak_memory_bytes
    ]


def render_prediction(records: Iterable[TrialRecord]) -> str:
    """Errors of the predicted peaks and their calibration, in two sentences; empty where nothing was measured."""
    pairs = pairs_of(records)
    if not pairs:
        return ""
    errors = [abs(pair.predicted_bytes / pair.measured_bytes - 1) for pair in pairs]
    text = (
        f"predicted against measured peak, {len(pairs)} candidates: median error {statistics.median(errors):.3%}, "
        f"largest {max(errors):.2%}"
    )
    found = calibrate(pairs)
    return f"{text}; {described(found)}" if found.coverage >= 0.5 else text


def described(found: Calibration) -> str:
    """A calibration in words."""
    constant = ""
    if abs(found.constant_bytes) >= WORTH_A_CONSTANT_BYTES:
        sign = "+" if found.constant_bytes > 0 else "-"
        constant = f" {sign} {format_bytes(round(abs(found.constant_bytes)))}"
    return (
        f"measured = {found.factor:.4f} x predicted{constant}, within {found.band:.2%} for a further candidate with a "
        f"probability of {found.coverage:.0%}"
    )
