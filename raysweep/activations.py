"""What one forward and backward pass of a model holds, as it was measured: lines in the micro-batch, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Bytes that are affine in the micro-batch."""

    constant_bytes: float = 0.0
    sample_bytes: float = 0.0
    """More for each sample."""

    def at(self, micro_batch_size: int) -> int:
        """The bytes at a micro-batch."""
        return round(self.constant_bytes + self.sample_bytes * micro_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment(Line):
    """What is alive at one moment of a block's pass; beside it, how much of its gradients is finished by then."""

    gradient_elements: int = 0
    """Elements of finished gradients since the backward pass of the block began; their bytes are not in the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward and backward of one part of a model: a block, or the head."""

    kept: Line
    """What its forward pass leaves alive, for the backward pass or as output; up to where the next block begins."""
    forward: tuple[Moment, ...]
    """The fullest moments of the forward pass, above what was alive when it began."""
    backward: tuple[Moment, ...]
    """The fullest moments of the backward pass, above what was alive when the forward pass ended.

    A gradient that is not finished counts here: one that waits for another use of its weight does so to the end. Empty
    where no gradient comes by.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Parts that follow each other and hold the same: blocks of a list, or the head."""

    first_index: int
    """Place of the first of them in its list, which decides where it is checkpointed. The head has its last block's."""
    count: int
    plain: Passes
    checkpointed: Passes
    """Where the block is checkpointed; of the head, where the last block is."""
    gradient_elements: int
    """Finished in the backward pass of one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationProfile:
    """A model's pass over one micro-batch in one precision, without parameters and finished gradients."""

    embedding: Passes
    """What comes before the first block. Its backward pass belongs to that of the first block."""
    runs: tuple[Run, ...]
    """Blocks in the order in which they are called, and at last the head: final norm, logits and loss."""
    batch: Line
    """The micro-batch itself, which stays to the end of the step."""
    buffer_bytes: int = 0
    """The model's buffers, which are no parameters and stay between steps."""
    of_one: ActivationProfile | None = None
    """That of a micro-batch of 1, which lies off the lines: operators then spare copies, or need others."""

    def at(self, micro_batch_size: int) -> ActivationProfile:
        """The profile that holds at a micro-batch."""
        return self.of_one if micro_batch_size == 1 and self.of_one is not None else self

    def parts(self, interval: int) -> Iterator[tuple[Passes, int]]:
        """Passes and gradient elements of each block and the head, every `interval`-th block of a list checkpointed."""
        for run in self.runs:
            for index in range(run.first_index, run.first_index + run.count):
                is_recomputed = interval > 0 and index % interval == 0
                yield (run.checkpointed if is_recomputed else run.plain), run.gradient_elements


def fullest(moments: Sequence[Moment], *, element_bytes: int) -> tuple[Moment, ...]:
    """The moments among which the peak is, whatever the micro-batch, in the order in which they come.

    Finished gradients either stay (ZeRO stages 0 and 1) or are taken away at once (2 and 3); and a bucket is there from
    the first of them on. So a moment is left out where another of its kind is as full in both numbers of its line.

    Args:
        moments: of one pass of one block.
        element_bytes: bytes of an element of a gradient.
    """
    began = [moment for moment in moments if not moment.gradient_elements]
    later = [moment for moment in moments if moment.gradient_elements]
    kept = {*_front(began, 0), *_front(later, 0), *_front(moments, element_bytes)}
    return tuple(moment for moment in dict.fromkeys(moments) if moment in kept)


def _front(moments: Sequence[Moment], element_bytes: int) -> list[Moment]:
    """Those that no other exceeds in bytes at a micro-batch of 1 and in bytes a sample."""
    sizes = {moment: moment.at(1) + element_bytes * moment.gradient_elements for moment in moments}
    front: list[Moment] = []
    for moment in sorted(sizes, key=lambda moment: (sizes[moment], moment.sample_bytes), reverse=True):
        if not front or moment.sample_bytes > front[-1].sample_bytes:
            front.append(moment)
    return front
