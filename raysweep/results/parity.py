"""Loss parity: equal seed, data and global batch must give equal training."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LOSS_TOLERANCE = {"bf16": 0.01, "fp16": 0.01, "fp32": 0.001}
"""Largest relative difference from the others' median loss, by precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The two losses of a candidate that ran to its end."""

    candidate_id: str
    global_batch_size: int
    first_loss: float
    """Before any update."""
    loss_at_step_5: float | None
    split: int | None = None
    """The micro-batch size where the loss depends on it: dropout draws other masks for other splits of a batch."""


def loss_parity(losses: Iterable[Losses], *, tolerance: float) -> dict[str, bool | None]:
    """Candidate id -> whether its losses agree with those of the others with the same global batch and split.

    None where there is no other. Where the others are even in number, to agree with either of their two middle values
    is enough: with three candidates of which one is wrong, the average of the middle values would accuse all.
    """
    by_batch: dict[tuple[int, int | None], list[Losses]] = defaultdict(list)
    for each in losses:
        by_batch[each.global_batch_size, each.split].append(each)
    return {
        each.candidate_id: _agrees(each, [other for other in group if other is not each], tolerance)
        for group in by_batch.values()
        for each in group
    }


def _agrees(mine: Losses, others: Sequence[Losses], tolerance: float) -> bool | None:
    if not others:
        return None
    first = _is_near(mine.first_loss, [other.first_loss for other in others], tolerance)
    later = [other.loss_at_step_5 for other in others if other.loss_at_step_5 is not None]
    if mine.loss_at_step_5 is None or not later:
        return first
    return first and _is_near(mine.loss_at_step_5, later, tolerance)


def _is_near(loss: float, others: Sequence[float], tolerance: float) -> bool:
    middles = (statistics.median_low(others), statistics.median_high(others))
    return any(abs(loss - middle) <= tolerance * abs(middle) for middle in middles)
