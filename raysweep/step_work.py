"""What one optimizer step of a candidate has to do, counted before anything runs: FLOPs, bytes, collectives, calls."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from raysweep.candidate import Candidate
from raysweep.workload import ModelShape, Workload
from raysweep.zero import HALF_BYTES, sent_bytes_per_step
from raysweep.zero_settings import ZeroSettings

CAUSAL = 0.5
"""Share of the attention matrix that a causal kernel works on."""
OPTIMIZER_TRAFFIC_BYTES = 28
"""Read and written by Adam for a parameter: master copy, momentum and variance both ways, the gradient once (fp32)."""
GATHER_CALLS = 2
"""Times that stage 3 prepares the parameters of a block in a micro-step: forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of one rank in one optimizer step. A step's time is modelled as linear in these."""

    compute_flops: float
    """Forward and backward."""
    recompute_flops: float
    """Second forward passes of checkpointed blocks."""
    block_passes: float
    """Blocks run, counted as thirds of a forward and backward: each costs a time however small the batch is.

    That makes the rate saturate: F / rate + constant is F / (rate x / (x + x_half)), with x the tokens.
    """
    reduce_bytes: float
    """Sent at stages 0 to 2."""
    gather_bytes: float
    """Sent at stage 3, where by default it overlaps with the computation."""
    collectives: float
    """Calls at stages 0 to 2."""
    gather_calls: float
    """Calls of stage 3's hooks around blocks."""
    gradient_hooks: float
    """Blocks whose gradients a hook of stages 1 and 2 puts into a bucket, with one worker, too."""
    micro_steps: float
    optimizer_bytes: float
    """Moved by the optimizer on this rank's share."""
    offload_bytes: float = 0.0
    """Moved by an optimizer in host memory, and between device and host."""
    steps: float = 1.0
    """The step itself: what a step costs however small it is."""


def step_work(candidate: Candidate, workload: Workload, settings: ZeroSettings) -> StepWork:
    """Count a candidate's work; without a shape, in units of the model's own parameters.

    FLOPs of a micro-step are b T (6 P_mm + 12 L T h kappa), with P_mm the parameters in matrix products, kappa 1/2 for
    causal attention; a recomputed block runs a third of its own again. Bytes are those of
    `raysweep.zero.sent_bytes_per_step`.
    """
    shape = workload.shape or _unknown_shape()
    micro_steps = candidate.gradient_accumulation_steps
    tokens = micro_steps * candidate.micro_batch_size_per_gpu * workload.tokens_per_sample
    attention = 12 * workload.tokens_per_sample * shape.hidden * CAUSAL
    per_block = 6 * shape.block_parameters + attention
    outside = shape.parameters if not shape.blocks else shape.vocab_size * shape.hidden
    recomputed = candidate.recomputed_blocks(shape.blocks)
    sent_bytes = float(sent_bytes_per_step(candidate, workload, settings) or 0)
    is_stage_3 = candidate.zero_stage == 3
    has_hooks = candidate.zero_stage in (1, 2)
    share = workload.world_size if candidate.zero_stage else 1
    traffic_bytes = OPTIMIZER_TRAFFIC_BYTES * shape.trainable / share
    # Gradients go to the host in every micro-step, parameters come back once.
    carried_bytes = HALF_BYTES * (micro_steps + 1) * shape.trainable / share
    return StepWork(
        compute_flops=tokens * (6.0 * outside + shape.blocks * per_block),
        recompute_flops=tokens * recomputed * per_block / 3,
        block_passes=micro_steps * (shape.blocks + 1 + recomputed / 3),
        reduce_bytes=0.0 if is_stage_3 else sent_bytes,
        gather_bytes=sent_bytes if is_stage_3 else 0.0,
        collectives=0.0 if is_stage_3 else _collectives(candidate, workload, settings, shape),
        gather_calls=micro_steps * (GATHER_CALLS * (shape.blocks + 1) + recomputed) if is_stage_3 else 0.0,
        gradient_hooks=float(micro_steps * (shape.blocks + 1)) if has_hooks else 0.0,
        micro_steps=float(micro_steps),
        optimizer_bytes=0.0 if settings.optimizer_on_host else traffic_bytes,
        offload_bytes=traffic_bytes + carried_bytes if settings.optimizer_on_host else 0.0,
    )


def deeper(work: StepWork, reference: int, world_size: int) -> StepWork:
    """The work with calls of all-reduce that are as dear at `world_size` workers as one is at `reference` workers.

    A tree of N ranks is log2 N deep, so a call counts log2 N / log2 N0 times.
    """
    depth = math.log2(max(world_size, 2)) / math.log2(max(reference, 2))
    return replace(work, collectives=depth * work.collectives)


def _collectives(candidate: Candidate, workload: Workload, settings: ZeroSettings, shape: ModelShape) -> float:
    """Buckets all-reduced, in every micro-step at stage 2, and the one gather of parameters from stage 1 on."""
    if workload.world_size == 1:
        return 0.0
    buckets = math.ceil(shape.trainable / settings.reduce_bucket_size)
    reductions = buckets * (candidate.gradient_accumulation_steps if candidate.zero_stage == 2 else 1)
    return float(reductions + (candidate.zero_stage > 0))


def _unknown_shape() -> ModelShape:
    """Blocks of one parameter: the model fits the scale, and the shares of the terms are what is left to learn."""
    return ModelShape(parameters=1, block_parameters=1, largest_parameter=1, blocks=1, hidden=0, vocab_size=0)
