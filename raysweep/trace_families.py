"""Chooses the micro-batches of a family that are traced, and what the others then need, by interpolation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from raysweep.candidate import Candidate
from raysweep.serde import canonical_json

TRACED_ACCUMULATION = 2
"""Accumulation with which all above 1 are traced: the second micro-step already carries all that later ones do."""

LINE_TOLERANCE = 1e-4
"""Share of a peak by which a traced point may lie off a line; small tensors do not grow with the micro-batch."""

Phases = Mapping[str, int]
"""Phase -> peak bytes."""


def family_key(candidate: Candidate) -> str:
    """What members of a family share: all but the micro-batch, and of the accumulation whether there is any."""
    return canonical_json(
        [
            candidate.zero_stage,
            candidate.activation_checkpoint_interval,
            candidate.gradient_accumulation_steps > 1,
            candidate.further_axes,
        ]
    )


def families(candidates: Iterable[Candidate]) -> dict[str, list[int]]:
    """Family -> its micro-batches, ascending."""
    members: dict[str, set[int]] = defaultdict(set)
    for candidate in candidates:
        members[family_key(candidate)].add(candidate.micro_batch_size_per_gpu)
    return {key: sorted(micro_batches) for key, micro_batches in members.items()}


def next_micro_batches(
    members: Sequence[int],
    known: Mapping[int, Phases],
    *,
    is_sure: Callable[[int, int], bool] = lambda low, high: False,
) -> list[int]:
    """Which micro-batches to trace next; none once what lies between the traced ones is known.

    First the two ends are traced. Where their allocations show what those between them need, that is all. Else one
    between them is traced. A phase's peak is the largest of several moments, each affine in the micro-batch, so it is
    convex: where a middle point lies on the chord of two others, all points between them do. Where it lies off the
    line, each half is asked again.

    Args:
        members: of the family, ascending.
        known: micro-batch -> phases, of those that were traced.
        is_sure: whether the traces of two micro-batches tell those between them (`allocations.are_alike`).
    """
    missing = sorted({micro_batch for micro_batch in (members[0], members[-1]) if micro_batch not in known})
    if missing:
        return missing
    wanted = []
    for low, high in pairwise(sorted(known)):
        between = [member for member in members if low < member < high]
        if between and not is_sure(low, high) and not _is_on_a_line(low, high, known):
            wanted.append(between[len(between) // 2])
    return wanted


def interpolated(micro_batch: int, known: Mapping[int, Mapping[str, Phases]]) -> dict[str, dict[str, int]]:
    """Phase -> kind -> bytes of a member on the lines between its traced neighbours.

    Args:
        micro_batch: of the member, not among the traced ones.
        known: micro-batch -> phase -> kind -> bytes, of those that were traced.
    """
    low = max(each for each in known if each < micro_batch)
    high = min(each for each in known if each > micro_batch)
    share = (micro_batch - low) / (high - low)
    below, above = known[low], known[high]
    return {
        phase: {
            kind: round(below[phase].get(kind, 0) * (1 - share) + above[phase].get(kind, 0) * share)
            for kind in sorted({*below[phase], *above[phase]})
        }
        for phase in below
    }


def _is_on_a_line(low: int, high: int, known: Mapping[int, Phases]) -> bool:
    """Whether a third traced point lies on the line through two neighbours, below or above them."""
    others = sorted(known)
    at = others.index(low)
    neighbours = others[max(0, at - 1) : at] + others[at + 2 : at + 3]
    return any(all(_is_near_chord(phase, low, high, third, known) for phase in known[low]) for third in neighbours)


def _is_near_chord(phase: str, low: int, high: int, third: int, known: Mapping[int, Phases]) -> bool:
    slope = (known[high][phase] - known[low][phase]) / (high - low)
    expected_bytes = known[low][phase] + slope * (third - low)
    return abs(known[third][phase] - expected_bytes) <= LINE_TOLERANCE * known[third][phase]
