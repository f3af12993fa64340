"""Compares the operators of a tiny real step with those of its trace: where they part, and by how much memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from raysweep.trace import RankTrace

OF_THE_MODEL = ("forward", "backward")
"""Phases in which the model's own code decides what is called."""

MADE_BY_THE_MODEL = ("activations", "gradients_and_temporaries")
"""Kinds of bytes that grow with the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Whether a trace goes the way of a real step."""

    parts_at: str = ""
    """The first operator in which they differ, in words; empty where they are the same."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Phase -> bytes above rest of the real step over those of the trace; empty where they are the same."""
    unknown: str = ""
    """Why they were not compared."""


def compare_steps(real: RankTrace, trace: RankTrace) -> Fidelity:
    """Compare a step that was run with the same step traced; both with their operators."""
    error = real.error or trace.error
    if error:
        return Fidelity(unknown=error)
    pairs = enumerate(zip_longest(real.operators, trace.operators, fillvalue="nothing"), start=1)
    parting = next(
        (f"operator {number}: {ran} in a run, {traced} in a trace" for number, (ran, traced) in pairs if ran != traced),
        "",
    )
    if not parting:
        return Fidelity()
    return Fidelity(
        parts_at=parting,
        ratios={
            phase: (real.phase_peaks_bytes[phase] - real.resting_bytes)
            / max(1, trace.phase_peaks_bytes[phase] - trace.resting_bytes)
            for phase in OF_THE_MODEL
        },
    )


def corrected(phases: Mapping[str, Mapping[str, int]], fidelity: Fidelity) -> dict[str, dict[str, int]]:
    """Phase -> kind -> bytes with what the model's code makes corrected by the ratio of the tiny step."""
    return {
        phase: {
            kind: round(size_bytes * fidelity.ratios.get(phase, 1.0)) if kind in MADE_BY_THE_MODEL else size_bytes
            for kind, size_bytes in kinds.items()
        }
        for phase, kinds in phases.items()
    }
