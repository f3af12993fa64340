"""Where the time of an optimizer step goes, as the step-time model tells it, and what it predicts against a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("compute", "recompute", "communication", "optimizer", "fixed cost of a step", "data")
"""What the time of a step is told to go to, in the order in which it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """What the step-time model says of a finished sweep; seconds of one optimizer step."""

    candidate_id: str
    """Whose step is taken apart: the winner."""
    step_time_s: float
    """Its median step time in the search, which the seconds below add up to."""
    seconds: Mapping[str, float]
    """Kind -> seconds. `data` was measured, and is missing where it was not; the others are the model's."""
    fitted_to: int
    """How many candidates the model was fitted to."""
    predicted_s: Mapping[str, float] = field(default_factory=dict)
    """Candidate id -> step time as predicted from the other candidates, its own measurement left out."""
    measured_s: Mapping[str, float] = field(default_factory=dict)
    """Candidate id -> median step time in the search."""
