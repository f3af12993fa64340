"""What a sweep gave when it came to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysweep.results.records import TrialRecord
from raysweep.results.select import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep came to."""

    selection: Selection
    records: Sequence[TrialRecord]
    folder: str
    launches: int
    group_starts: int
    wall_s: float
    stop_reason: str
