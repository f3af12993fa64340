"""Forward and backward of a model whose activations were measured, by ZeRO stage: the fullest moment of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    forward = [Counter(activations=moment.at(micro_batch)) for moment in profile.embedding.forward]
    behind = sum(elements for _, elements in parts)
    backward: list[Counter[str]] = []
    holder = _Holder(case)
    for place, (passes, elements) in enumerate(parts):
        highest_bytes = max((moment.at(micro_batch) for moment in passes.forward), default=0)
        forward.append(Counter(activations=left_bytes + highest_bytes))
        if place == len(parts) - 2:
            forward[-1] += _prefetched(case)
        # The head's backward pass begins while what it kept is alive, and is measured above what the blocks kept.
        left_bytes += passes.kept.at(micro_batch) if place < len(parts) - 1 else 0
        behind -= elements
        backward.append(holder.fullest(passes.backward, base_bytes=left_bytes, behind=behind))
    *blocks, head = backward
    return {
        "forward": carried_into_forward(case) + max(forward, key=Counter.total),
        "backward_start": head,
        "backward_first": blocks[-1] if blocks else Counter(),
        "backward_late": max(blocks[:-1], key=Counter.total, default=Counter()),
    }


def _prefetched(case: Case) -> Counter[str]:
    """What stage 3 still holds with the last block: its last prefetch, from whose one buffer parameters are copied.

    At most all blocks; see `raysweep.memory_terms`.
    """
    if case.zero_stage < 3:
        return Counter()
    limit = min(case.settings.stage3_prefetch_bucket_size, case.settings.stage3_max_live_parameters)
    elements = min(limit, case.shape.blocks * case.shape.block_parameters)
    return Counter(prefetched_parameters=case.element_bytes * elements)


class _Holder:
    """What a case holds beside activations at a moment of its backward pass.

    Stages 0 and 1 keep every finished gradient. Stages 2 and 3 take them away; stage 2 allocates its share when the
    first bucket is full. Stages 1 and 2 have a bucket from the first finished gradient on.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._micro_step = in_micro_step(case)
        self._bucket = bucket(case)
        self._carried = carried_gradients(case)
        self._reduced = gradients_after_backward(case)

    def fullest(self, moments: Sequence[Moment], *, base_bytes: int, behind: int) -> Counter[str]:
        """The terms at the fullest of a part's moments; nothing where no gradient comes by."""
        if not moments:
            return Counter()
        micro_batch = self._case.candidate.micro_batch_size_per_gpu
        finished = [behind + moment.gradient_elements for moment in moments]
        # Counters are dear, and there are many moments: one for each number of finished elements.
        gradients = {elements: self._gradients(elements) for elements in set(finished)}
        sizes = [
            moment.at(micro_batch) + gradients[elements].total()
            for moment, elements in zip(moments, finished, strict=True)
        ]
        place = max(range(len(moments)), key=sizes.__getitem__)
        own = Counter(activations=base_bytes + moments[place].at(micro_batch))
        return self._micro_step + own + gradients[finished[place]]

    def _gradients(self, finished: int) -> Counter[str]:
        case = self._case
        has_bucket = finished > 0 or (case.zero_stage == 1 and case.accumulates)
        held = self._bucket if has_bucket else Counter()
        if case.zero_stage < 2:
            return held + (self._carried or Counter(gradients=case.element_bytes * finished))
        return held + (self._reduced if finished >= case.settings.reduce_bucket_size else self._carried)
