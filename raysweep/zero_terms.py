"""What ZeRO holds whatever the model: states, gradients, buckets and the update, each with its line of algebra."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from raysweep.candidate import Candidate
from raysweep.workload import BYTES_PER_ELEMENT, ModelShape, Workload
from raysweep.zero_settings import ZeroSettings

FP32_BYTES = 4
ADAM_MOMENT_BYTES = 8
ADAM_TEMPORARY_BYTES = 8
"""fp32 temporaries of torch's single-tensor AdamW, an element of the tensor that it updates: two of 4 bytes."""

STAGE_0_REDUCE_ELEMENTS = 500_000_000
"""Elements that stage 0 copies together for one all-reduce (`buffered_allreduce_fallback` in runtime/engine.py)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A candidate in its workload, and the sizes that several terms share. It has no slots, for it keeps a size."""

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

    def is_recomputed(self, block: int) -> bool:
        """Whether a block is checkpointed."""
        interval = self.candidate.activation_checkpoint_interval
        return interval > 0 and block % interval == 0


def resting(case: Case) -> Counter[str]:
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
        states += Counter(gradients=case.gradient_bytes * partition, reduce_bucket=bucket_bytes(case))
    if case.has_bf16_optimizer:
        states += Counter(gradients=FP32_BYTES * case.trainable)
    if case.shape.activations is not None:
        states += Counter(buffers=case.shape.activations.buffer_bytes)
    return states


def gathered_parameters(case: Case) -> Counter[str]:
    """Whole parameters that stage 3 holds in forward and backward: e x min(P, max_live + prefetch)."""
    if case.zero_stage < 3:
        return Counter()
    live = case.settings.stage3_max_live_parameters + case.settings.stage3_prefetch_bucket_size
    return Counter(gathered_parameters=case.element_bytes * min(case.shape.parameters, live))


def carried_gradients(case: Case) -> Counter[str]:
    """Gradients of earlier micro-steps: eP at stages 0 and 1, the rank's share at stage 2, at rest at stage 3."""
    if not case.accumulates or case.zero_stage == 3:
        return Counter()
    return Counter(gradients=gradients_kept(case))


def gradients_kept(case: Case) -> int:
    """Stage 2 keeps a parameter that two shares split whole on both ranks: at least half of it is foreign to one."""
    if case.zero_stage < 2:
        return case.element_bytes * case.trainable
    return case.gradient_bytes * (case.partition + case.shape.largest_parameter // 2)


def gradients_after_backward(case: Case) -> Counter[str]:
    """All gradients of a micro-step: eP at stages 0 and 1; stage 2 writes its new share beside the carried one."""
    if case.zero_stage == 3:
        return Counter()
    own = Counter(gradients=gradients_kept(case))
    return own + carried_gradients(case) if case.zero_stage == 2 else own


def bucket(case: Case) -> Counter[str]:
    """What stages 1 and 2 allocate when the first gradient is ready (`setup_buckets` in zero/stage_1_and_2.py)."""
    if case.zero_stage in (0, 3) or case.has_bf16_optimizer:
        return Counter()
    return Counter(reduce_bucket=bucket_bytes(case) * (2 if case.settings.overlaps(case.zero_stage) else 1))


def bucket_bytes(case: Case) -> int:
    """One reduce bucket: e B."""
    return case.element_bytes * case.settings.reduce_bucket_size


def carried_bucket(case: Case) -> Counter[str]:
    """Stage 1 reduces only in the last micro-step, and keeps its bucket from the first micro-step until then."""
    return bucket(case) if case.zero_stage == 1 and case.accumulates else Counter()


def in_micro_step(case: Case) -> Counter[str]:
    """Alive in all of forward and backward: what rests, and at stage 3 what is gathered."""
    return resting(case) + gathered_parameters(case)


def carried_into_forward(case: Case) -> Counter[str]:
    """The same with what earlier micro-steps left, for forward and the begin of backward."""
    return in_micro_step(case) + carried_gradients(case) + carried_bucket(case)


def reduction(case: Case) -> Counter[str]:
    """Copies made while gradients are reduced: flattened at stage 0, the rank's own share at stage 1.

    The first full bucket has freed its gradients before stage 1 allocates the share (`copy_grads_in_partition`).
    At stage 3 the reduce-scatter of gloo copies its input.
    """
    if case.zero_stage == 0:
        return Counter(reduction_copies=case.element_bytes * min(case.trainable, STAGE_0_REDUCE_ELEMENTS))
    if case.zero_stage == 1:
        return Counter(reduction_copies=case.element_bytes * max(0, case.partition - case.settings.reduce_bucket_size))
    if case.zero_stage == 3 and case.workload.device == "cpu":
        return Counter(reduction_copies=min(bucket_bytes(case), case.element_bytes * case.trainable))
    return Counter()


def step(case: Case) -> Counter[str]:
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
