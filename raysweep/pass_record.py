"""Makes an activation profile from passes of a model that were recorded moment by moment at several micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from raysweep.activations import ActivationProfile, Line, Moment, Passes, Run, fullest

BLOCKS_KEPT = 5
"""Of a long list of equal blocks: the first, three like all others, and the last."""

MICRO_BATCHES = (2, 4)
"""Two, so that all is affine between and beyond. A micro-batch of 1 takes ways of its own, and is recorded beside."""


@dataclass(slots=True, kw_only=True)
class PartRecord:
    """One block's pass in one direction, or the head's."""

    began_bytes: int
    ended_bytes: int = 0
    moments: list[tuple[int, int]] = field(default_factory=list)
    """Bytes alive, and elements of gradients finished since the part began."""
    gradient_elements: int = 0


@dataclass(slots=True, kw_only=True)
class PassRecord:
    """One forward and backward pass, part by part: what comes before the blocks, each block called, the head."""

    forward: list[PartRecord]
    backward: dict[int, PartRecord] = field(default_factory=dict)
    """By place in `forward`. The first has none; nor has a block that no gradient reaches."""
    indices: list[tuple[int, int]] = field(default_factory=list)
    """Number of its list and place in it, of each block called."""
    batch_bytes: int = 0
    """Of the micro-batch, as far as it is counted among the live ones."""
    input_bytes: int = 0
    """Of the micro-batch, whoever made it."""


def profile_of(
    plain: Sequence[PassRecord],
    checkpointed: Sequence[PassRecord],
    *,
    buffer_bytes: int,
    element_bytes: int,
    left_out: Sequence[int] = (),
) -> ActivationProfile:
    """The lines through the passes at the two micro-batches, with equal blocks told once.

    Args:
        plain: with no block checkpointed, one for each of MICRO_BATCHES.
        checkpointed: the same with every block checkpointed.
        buffer_bytes: of the model's buffers.
        element_bytes: of an element of a gradient.
        left_out: blocks that were left out of each list, of which BLOCKS_KEPT were kept.

    Raises:
        ValueError: when the model calls its blocks otherwise at another micro-batch, or blocks that stand for others
            are not equal.
    """
    ways = {(tuple(each.indices), tuple(sorted(each.backward))) for each in (*plain, *checkpointed)}
    if len(ways) > 1:
        raise ValueError("the model calls its blocks otherwise at another micro-batch, or when they are checkpointed")
    called = plain[0].indices or [(0, 0)]
    measured = [
        Run(
            first_index=index,
            count=1,
            plain=_passes(plain, place, element_bytes),
            checkpointed=_passes(checkpointed, place, element_bytes),
            gradient_elements=max(
                each.backward[place].gradient_elements if place in each.backward else 0
                for each in (*plain, *checkpointed)
            ),
        )
        for place, (_, index) in enumerate([*plain[0].indices, called[-1]], start=1)
    ]
    numbers = [number for number, _ in [*plain[0].indices, called[-1]]]
    return ActivationProfile(
        embedding=_passes(plain, 0, element_bytes),
        runs=_joined(_with_left_out(measured, [left_out[number] if left_out else 0 for number in numbers])),
        batch=_line([each.batch_bytes for each in plain]),
        buffer_bytes=buffer_bytes,
    )


def _with_left_out(measured: Sequence[Run], left_out: Sequence[int]) -> list[Run]:
    """The runs with the blocks that were left out between the last but one and the last of their list."""
    found: list[Run] = []
    for place, (run, count) in enumerate(zip(measured, left_out, strict=True)):
        if count and run.first_index == BLOCKS_KEPT - 2:
            alike = {replace(each, first_index=0) for each in measured[place - BLOCKS_KEPT + 3 : place + 1]}
            if len(alike) > 1:
                raise ValueError("blocks that stand for others hold different bytes")
            found.append(replace(run, count=1 + count))
        else:
            found.append(replace(run, first_index=run.first_index + count * (run.first_index == BLOCKS_KEPT - 1)))
    return found


def _joined(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs with those joined that follow each other in a list and hold the same."""
    joined: list[Run] = []
    for run in runs:
        before = joined[-1] if joined else run
        follows = before is not run and before.first_index + before.count == run.first_index
        if follows and before == replace(run, first_index=before.first_index, count=before.count):
            joined[-1] = replace(before, count=before.count + run.count)
        else:
            joined.append(run)
    return tuple(joined)


def _passes(runs: Sequence[PassRecord], place: int, element_bytes: int) -> Passes:
    forward = [run.forward[place] for run in runs]
    backward = [run.backward[place] for run in runs if place in run.backward]
    kept = _line([part.ended_bytes - part.began_bytes for part in forward])
    return Passes(
        kept=kept,
        forward=fullest(_moments(forward), element_bytes=element_bytes),
        backward=fullest(_moments(backward), element_bytes=element_bytes),
    )


def _moments(parts: Sequence[PartRecord]) -> list[Moment]:
    """Each moment as a line; where other operators run at another micro-batch, the two fullest moments alone."""
    above = [[(size_bytes - part.began_bytes, done) for size_bytes, done in part.moments] for part in parts]
    if len({tuple(done for _, done in moments) for moments in above}) > 1:
        above = [[max(moments), max(moments, key=lambda moment: moment[::-1])] for moments in above]
    found = []
    for pair in zip(*above, strict=True):
        line = _line([size_bytes for size_bytes, _ in pair])
        found.append(
            Moment(
                constant_bytes=line.constant_bytes,
                sample_bytes=line.sample_bytes,
                gradient_elements=min(done for _, done in pair),
            )
        )
    return found


def _line(sizes_bytes: Sequence[int]) -> Line:
    (first, second), (few, many) = sizes_bytes, MICRO_BATCHES
    slope = (second - first) / (many - few)
    return Line(constant_bytes=first - slope * few, sample_bytes=slope)
