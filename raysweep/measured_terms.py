"""Forward and backward of a model whose activations were measured, by ZeRO stage: the fullest moment of each phase."""

from __future__ import annotations

from collections import Counter

from raysweep.activations import ActivationProfile, Moment
from raysweep.zero_terms import (
    Case,
    bucket,
    carried_gradients,
    carried_into_forward,
    gradients_after_backward,
    in_micro_step,
)


def measured_passes(case: Case, profile: ActivationProfile) -> dict[str, Counter[str]]:
    """Phase -> term -> bytes alive; each part's moments lie over what the forward passes of the parts before left."""
    micro_batch = case.candidate.micro_batch_size_per_gpu
    profile = profile.at(micro_batch)
    parts = list(profile.parts(case.candidate.activation_checkpoint_interval))
    left_bytes = profile.embedding.kept.at(micro_batch)
    forward = [moment.at(micro_batch) for moment in profile.embedding.forward]
    behind = sum(elements for _, elements in parts)
    backward: list[Counter[str] | None] = []
    for place, (passes, elements) in enumerate(parts):
        forward += [left_bytes + moment.at(micro_batch) for moment in passes.forward]
        # The head's backward pass begins while what it kept is alive, and is measured above what the blocks kept.
        left_bytes += passes.kept.at(micro_batch) if place < len(parts) - 1 else 0
        behind -= elements
        moments = [_in_backward(case, moment, base_bytes=left_bytes, behind=behind) for moment in passes.backward]
        backward.append(max(moments, key=Counter.total, default=None))
    *blocks, head = (Counter[str]() if terms is None else terms for terms in backward)
    return {
        "forward": carried_into_forward(case) + Counter(activations=max(forward, default=0)),
        "backward_start": head,
        "backward_first": blocks[-1] if blocks else Counter(),
        "backward_late": max(blocks[:-1], key=Counter.total, default=Counter()),
    }


def _in_backward(case: Case, moment: Moment, *, base_bytes: int, behind: int) -> Counter[str]:
    """What is alive at a moment of a backward pass.

    Stages 0 and 1 keep every finished gradient. Stages 2 and 3 take them away; stage 2 allocates its share when the
    first bucket is full.
    """
    finished = behind + moment.gradient_elements
    alive = in_micro_step(case) + Counter(activations=base_bytes + moment.at(case.candidate.micro_batch_size_per_gpu))
    if finished or (case.zero_stage == 1 and case.accumulates):
        alive += bucket(case)
    carried = carried_gradients(case)
    if case.zero_stage < 2:
        return alive + (carried or Counter(gradients=case.element_bytes * finished))
    is_reduced = finished >= case.settings.reduce_bucket_size
    return alive + (gradients_after_backward(case) if is_reduced else carried)
