"""The terms of a memory prediction by phase: what ZeRO holds, and activations, measured or as in the built-in GPT."""

from __future__ import annotations

from collections import Counter

from raysweep.measured_terms import measured_passes
from raysweep.zero_terms import (
    Case,
    bucket,
    carried_gradients,
    carried_into_forward,
    gradients_after_backward,
    in_micro_step,
    reduction,
    resting,
    step,
)

HIDDEN_TENSORS_PER_BLOCK = 16.05
"""Hidden-sized tensors that a block saves for its backward pass, with fused attention and no dropout.

Layer norms 1 + 1, query, key and value 3, attention output 1 + 1, residual 1, feed-forward 4 + 4; the rest is
layer-norm statistics and the log-sum-exp of attention.
"""

FORWARD_WORKING_TENSORS = 9
"""Hidden-sized tensors alive at once in the feed-forward part of a block whose activations are not kept: 4 + 4 + 1."""

BACKWARD_WORKING_TENSORS = 5
"""Hidden-sized gradients alive at once in the feed-forward part of a block: 4 inside, 1 of the block's output."""

HEAD_TENSORS = 2
"""Hidden-sized tensors that the final norm and the head save."""

FORWARD_BYTES_PER_LOGIT = 8
"""The logits in fp32 and their log-softmax, 4 bytes each."""

BACKWARD_BYTES_PER_LOGIT = 12
"""fp32 log-softmax, its gradient, and the gradient of the logits, 4 bytes each, alive at once as backward starts."""


def phase_terms(case: Case) -> dict[str, Counter[str]]:
    """Phase of a steady optimizer step -> term -> bytes alive, the phases in their order.

    Of a model whose activations were measured, they are its own; else they are those of the built-in GPT.
    """
    passes = _assumed(case) if case.shape.activations is None else measured_passes(case, case.shape.activations)
    reduced = in_micro_step(case) + bucket(case) + gradients_after_backward(case) + reduction(case)
    return passes | {
        "gradient_reduction": reduced + _batch(case),
        "step": resting(case) + step(case) + _batch(case),
    }


def _batch(case: Case) -> Counter[str]:
    """The micro-batch itself, where it was measured: the loop holds it to the end of the step."""
    if case.shape.activations is None:
        return Counter()
    return Counter(activations=case.shape.activations.batch.at(case.candidate.micro_batch_size_per_gpu))


def _assumed(case: Case) -> dict[str, Counter[str]]:
    """Forward and backward with the activations of the built-in GPT."""
    micro_step, carried = in_micro_step(case), carried_into_forward(case)
    blocks = range(case.shape.blocks)
    reducing = micro_step + bucket(case)
    backward = [reducing + _block_backward(case, block) for block in blocks]
    return {
        "forward": carried + _forward(case),
        "backward_start": carried + _loss(case),
        "backward_first": backward[-1] if backward else reducing,
        "backward_late": max(backward[:-1], key=Counter.total, default=micro_step),
    }


def _block_bytes(case: Case) -> int:
    """What a block saves for its backward pass."""
    return round(HIDDEN_TENSORS_PER_BLOCK * case.hidden_tensor_bytes)


def _activations(case: Case, blocks: int) -> int:
    """Saved by the first `blocks` blocks: 16.05 hidden tensors of a block, only its input of a checkpointed one."""
    recomputed = case.candidate.recomputed_blocks(blocks)
    return (blocks - recomputed) * _block_bytes(case) + recomputed * case.hidden_tensor_bytes


def _forward(case: Case) -> Counter[str]:
    """The larger of two moments late in forward: the last block at work, and the loss (8 bytes a logit).

    With the last block stage 3 still holds its last prefetch: gathered into one flat buffer, copied out parameter by
    parameter, and freed when the last of them is used (`AllGatherCoalescedHandle` in zero/partition_parameters.py).
    """
    blocks = case.shape.blocks
    working = FORWARD_WORKING_TENSORS * case.hidden_tensor_bytes if case.is_recomputed(blocks - 1) else 0
    last_block = Counter(activations=working)
    if case.zero_stage == 3:
        limit = min(case.settings.stage3_prefetch_bucket_size, case.settings.stage3_max_live_parameters)
        last_block += Counter(prefetched_parameters=case.element_bytes * min(limit, _sharded_parameters(case)))
    largest = max(last_block, _head(case, bytes_per_logit=FORWARD_BYTES_PER_LOGIT), key=Counter.total)
    return Counter(activations=_activations(case, blocks)) + largest


def _sharded_parameters(case: Case) -> int:
    """Parameters that stage 3 does not keep whole: tensors above the persistence threshold.

    A block's matrices have 3, 1, 4 and 4 h^2 elements; the rest outside the blocks counts by the size of an embedding.
    """
    shape, threshold = case.shape, case.settings.stage3_param_persistence_threshold
    in_block = sum(share * shape.hidden**2 for share in (3, 1, 4, 4) if share * shape.hidden**2 > threshold)
    outside = shape.parameters - shape.blocks * shape.block_parameters
    return shape.blocks * in_block + (outside if shape.vocab_size * shape.hidden > threshold else 0)


def _loss(case: Case) -> Counter[str]:
    """As backward starts: all activations, what the final norm and the head saved, and 12 bytes a logit (b x T x V)."""
    saved = Counter(activations=_activations(case, case.shape.blocks))
    return saved + _head(case, bytes_per_logit=BACKWARD_BYTES_PER_LOGIT)


def _head(case: Case, *, bytes_per_logit: int) -> Counter[str]:
    return Counter(
        activations=HEAD_TENSORS * case.hidden_tensor_bytes,
        logits=bytes_per_logit * case.tokens * case.shape.vocab_size,
    )


def _block_backward(case: Case, block: int) -> Counter[str]:
    """In the backward pass of a block: what it and the blocks before it saved, and gradients of those behind it.

    A checkpointed block is recomputed up to all that it would have saved; its input is there already.
    """
    recomputed = _block_bytes(case) - case.hidden_tensor_bytes if case.is_recomputed(block) else 0
    working = BACKWARD_WORKING_TENSORS * case.hidden_tensor_bytes
    return _gradients_behind(case, block) + Counter(
        activations=_activations(case, block + 1) + recomputed + working,
        # A weight's gradient before it joins the others: at most 4 h^2 elements inside a block.
        gradients_in_flight=case.element_bytes * min(4 * case.shape.hidden**2, case.trainable),
    )


def _gradients_behind(case: Case, block: int) -> Counter[str]:
    """Gradients alive when the backward pass reaches a block, at most those of all trainable parameters.

    A tied head's gradient waits for the embedding's. Stage 2 allocates its share when the first bucket is full.
    """
    behind = (case.shape.blocks - 1 - block) * case.shape.block_parameters
    head = case.shape.vocab_size * case.shape.hidden
    if case.zero_stage < 2:
        alive = min(behind + head, case.trainable)
        return carried_gradients(case) or Counter(gradients=case.element_bytes * alive)
    waiting = Counter(gradients=case.element_bytes * head if case.workload.model.get("tied") else 0)
    is_reduced = behind >= case.settings.reduce_bucket_size
    return waiting + (gradients_after_backward(case) if is_reduced else carried_gradients(case))
