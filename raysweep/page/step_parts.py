"""Where the winner's step goes, in figures and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysweep.page.facts import ReportFacts
from raysweep.step_shares import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One kind of work in the winner's step."""

    kind: str
    milliseconds: str
    percent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The parts of the winner's step, and where they are known from."""

    told: str
    parts: Sequence[StepPart]


def step_parts(facts: ReportFacts) -> StepParts | None:
    """The parts; None where they are not known."""
    steps = facts.steps
    if steps is None:
        return None
    is_data_seen = "data" in steps.seconds
    return StepParts(
        told=(
            f"{steps.candidate_id}: {1000 * steps.step_time_s:.1f} ms a step in the search. The parts are those of the "
            f"step-time model, fitted to {steps.fitted_to} candidates of this sweep and stretched to that time; they "
            "were not timed one by one. "
            + ("Getting the data was measured." if is_data_seen else "Getting the data is among them, and not seen.")
        ),
        parts=[
            StepPart(
                kind=kind,
                milliseconds=f"{1000 * steps.seconds[kind]:.1f}",
                percent=f"{100 * steps.seconds[kind] / steps.step_time_s:.1f}",
            )
            for kind in KINDS
            if kind in steps.seconds
        ],
    )
