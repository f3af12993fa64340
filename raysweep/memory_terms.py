"""The terms of a memory prediction, each with its line of algebra: what is alive in a phase, in bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from raysweep.candidate import Candidate
from raysweep.workload import BYTES_PER_ELEMENT, ModelShape, Workload
from raysweep.zero_settings import ZeroSettings

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

FP32_BYTES = 4
ADAM_MOMENT_BYTES = 8
ADAM_TEMPORARY_BYTES = 8
"""fp32 temporaries of torch's single-tensor AdamW, an element of the tensor that it updates: two of 4 bytes."""

STAGE_0_REDUCE_ELEMENTS = 500_000_000
"""Elements that stage 0 copies together for one all-reduce (`buffered_allreduce_fallback` in runtime/engine.py)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A candidate in its workload, and the sizes that several terms share. It keeps no slots: it keeps two sizes."""

    candidate: Candidate
    workload: Workload
    settings: ZeroSettings
    shape: ModelShape

    @property
    def zero_stage(self) -> int:
        return self.candidate.zero_stage

    @property
    def accumulates(self) -> bool:
        return self.candidate.gradient_accumulation_steps > 1

    @property
    def element_bytes(self) -> int:
        return BYTES_PER_ELEMENT[self.workload.precision]

    @property
    def is_half(self) -> bool:
        return self.element_bytes == 2

    @property
    def has_bf16_optimizer(self) -> bool:
        """Stage 1 with fp32 accumulation gets another optimizer class, with a whole fp32 gradient."""
        return self.zero_stage == 1 and self.workload.precision == "bf16" and self.settings.fp32_grad_accumulation

    @property
    def trainable(self) -> int:
        """Parameters that have a gradient and optimizer states; frozen ones have neither."""
        return self.shape.trainable

    @property
    def partition(self) -> int:
        """Elements of one rank's share of the trainable parameters: P / N."""
        return -(-self.trainable // self.workload.world_size)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of a gradient that stages 2 and 3 keep."""
        return FP32_BYTES if self.settings.fp32_grad_accumulation else self.element_bytes

    @property
    def tokens(self) -> int:
        return self.candidate.micro_batch_size_per_gpu * self.workload.tokens_per_sample

    @cached_property
    def hidden_tensor_bytes(self) -> int:
        """One hidden-sized tensor of a micro-batch: b x T x h elements."""
        return self.tokens * self.shape.hidden * self.element_bytes

    @cached_property
    def block_bytes(self) -> int:
        """What a block saves for its backward pass."""
        return round(HIDDEN_TENSORS_PER_BLOCK * self.hidden_tensor_bytes)

    def is_recomputed(self, block: int) -> bool:
        """Whether a block is checkpointed."""
        interval = self.candidate.activation_checkpoint_interval
        return interval > 0 and block % interval == 0


def phase_terms(case: Case) -> dict[str, Counter[str]]:
    """Phase of a steady optimizer step -> term -> bytes alive, the phases in their order."""
    resting = _resting(case)
    micro_step = resting + _gathered_parameters(case)
    carried = micro_step + _carried_gradients(case) + _carried_bucket(case)
    blocks = range(case.shape.blocks)
    reducing = micro_step + _bucket(case)
    backward = [reducing + _block_backward(case, block) for block in blocks]
    return {
        "forward": carried + _forward(case),
        "backward_start": carried + _loss(case),
        "backward_first": backward[-1] if backward else reducing,
        "backward_late": max(backward[:-1], key=Counter.total, default=micro_step),
        "gradient_reduction": reducing + _gradients_after_backward(case) + _reduction(case),
        "step": resting + _step(case),
    }


def _resting(case: Case) -> Counter[str]:
    """Held between steps: parameters eP, fp32 master 4P and Adam's moments 8P, each sharded from its stage on.

    Frozen parameters have no states; stage 3 shards them like the others. Training in fp32 without ZeRO has no master
    copy. Stage 3 keeps its gradient partition and the reduce bucket
    (`grad_partitions_flat_buffer` and `ipg_buckets` in runtime/zero/stage3.py).
    """
    parameters, partition, stage = case.shape.parameters, case.partition, case.zero_stage
    master_bytes = FP32_BYTES if case.is_half or stage > 0 else 0
    states = Counter(
        parameters=case.element_bytes * (-(-parameters // case.workload.world_size) if stage == 3 else parameters),
        optimizer_states=(master_bytes + ADAM_MOMENT_BYTES) * (case.trainable if stage == 0 else partition),
    )
    if stage == 3:
        states += Counter(gradients=case.gradient_bytes * partition, reduce_bucket=_bucket_bytes(case))
    if case.has_bf16_optimizer:
        states += Counter(gradients=FP32_BYTES * case.trainable)
    return states


def _gathered_parameters(case: Case) -> Counter[str]:
    """Whole parameters that stage 3 holds in forward and backward: e x min(P, max_live + prefetch)."""
    if case.zero_stage < 3:
        return Counter()
    live = case.settings.stage3_max_live_parameters + case.settings.stage3_prefetch_bucket_size
    return Counter(gathered_parameters=case.element_bytes * min(case.shape.parameters, live))


def _carried_gradients(case: Case) -> Counter[str]:
    """Gradients of earlier micro-steps: eP at stages 0 and 1, the rank's share at stage 2, at rest at stage 3."""
    if not case.accumulates or case.zero_stage == 3:
        return Counter()
    return Counter(gradients=_gradients_kept(case))


def _gradients_kept(case: Case) -> int:
    """Stage 2 keeps a parameter that two shares split whole on both ranks: at least half of it is foreign to one."""
    if case.zero_stage < 2:
        return case.element_bytes * case.trainable
    return case.gradient_bytes * (case.partition + case.shape.largest_parameter // 2)


def _gradients_after_backward(case: Case) -> Counter[str]:
    """All gradients of a micro-step: eP at stages 0 and 1; stage 2 writes its new share beside the carried one."""
    if case.zero_stage == 3:
        return Counter()
    own = Counter(gradients=_gradients_kept(case))
    return own + _carried_gradients(case) if case.zero_stage == 2 else own


def _bucket(case: Case) -> Counter[str]:
    """What stages 1 and 2 allocate when the first gradient is ready (`setup_buckets` in zero/stage_1_and_2.py)."""
    if case.zero_stage in (0, 3) or case.has_bf16_optimizer:
        return Counter()
    return Counter(reduce_bucket=_bucket_bytes(case) * (2 if case.settings.overlaps(case.zero_stage) else 1))


def _bucket_bytes(case: Case) -> int:
    return case.element_bytes * case.settings.reduce_bucket_size


def _carried_bucket(case: Case) -> Counter[str]:
    """Stage 1 reduces only in the last micro-step, and keeps its bucket from the first micro-step until then."""
    return _bucket(case) if case.zero_stage == 1 and case.accumulates else Counter()


def _activations(case: Case, blocks: int) -> int:
    """Saved by the first `blocks` blocks: 16.05 hidden tensors of a block, only its input of a checkpointed one."""
    recomputed = case.candidate.recomputed_blocks(blocks)
    return (blocks - recomputed) * case.block_bytes + recomputed * case.hidden_tensor_bytes


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
    recomputed = case.block_bytes - case.hidden_tensor_bytes if case.is_recomputed(block) else 0
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
        return _carried_gradients(case) or Counter(gradients=case.element_bytes * alive)
    waiting = Counter(gradients=case.element_bytes * head if case.workload.model.get("tied") else 0)
    is_reduced = behind >= case.settings.reduce_bucket_size
    return waiting + (_gradients_after_backward(case) if is_reduced else _carried_gradients(case))


def _reduction(case: Case) -> Counter[str]:
    """Copies made while gradients are reduced: flattened at stage 0, the rank's own share at stage 1.

    The first full bucket has freed its gradients before stage 1 allocates the share (`copy_grads_in_partition`).
    At stage 3 the reduce-scatter of gloo copies its input.
    """
    if case.zero_stage == 0:
        return Counter(reduction_copies=case.element_bytes * min(case.trainable, STAGE_0_REDUCE_ELEMENTS))
    if case.zero_stage == 1:
        return Counter(reduction_copies=case.element_bytes * max(0, case.partition - case.settings.reduce_bucket_size))
    if case.zero_stage == 3 and case.workload.device == "cpu":
        return Counter(reduction_copies=min(_bucket_bytes(case), case.element_bytes * case.trainable))
    return Counter()


def _step(case: Case) -> Counter[str]:
    """The update: fp32 gradients and AdamW's temporaries, of a whole parameter at stage 0, of the share above.

    Stage 0 in half precision holds bf16 and fp32 gradients at once (runtime/fp16/unfused_optimizer.py). The
    temporaries are those of torch's AdamW on CPU; a fused Adam on CUDA has none.
    """
    temporary_bytes = ADAM_TEMPORARY_BYTES if case.workload.device == "cpu" else 0
    if case.zero_stage == 0:
        gradient_bytes = case.element_bytes + (FP32_BYTES if case.is_half else 0)
        return Counter(
            gradients=gradient_bytes * case.trainable,
            optimizer_temporaries=temporary_bytes * case.shape.largest_parameter,
        )
    gradients = 0 if case.has_bf16_optimizer else FP32_BYTES * case.partition
    return Counter(gradients=gradients, optimizer_temporaries=temporary_bytes * case.partition)
