"""What the ZeRO stages shard, keep and send: the textbook's formulas, and DeepSpeed's traffic as configured."""

from __future__ import annotations

from raysweep.candidate import Candidate
from raysweep.workload import Workload
from raysweep.zero_settings import ZeroSettings

SHARDS = {
    0: "nothing (plain data parallel)",
    1: "optimizer states",
    2: "optimizer states and gradients",
    3: "optimizer states, gradients and parameters",
}
"""zero_stage -> what is split over the ranks."""

HALF_BYTES = 2
OPTIMIZER_BYTES = 12
"""fp32 master copy, momentum and variance of Adam: 4 bytes each a parameter."""

HIDDEN_TENSORS_PER_BLOCK = 16
RECOMPUTE_GATHERS = 1.2
"""Bytes that stage 3 gathers again for recomputation, a byte of checkpointed parameters that were released.

Traced with DeepSpeed 0.19.8 on a small GPT that kept nothing (max_live_parameters 1): 3.9 P bytes gathered without
checkpointing and 5.1 P with every block checkpointed.
"""


def model_state_bytes(zero_stage: int, parameters: int, world_size: int) -> float:
    """Bytes a device for parameters, gradients and Adam in mixed precision (ZeRO paper, arXiv 1910.02054, section 5).

    16P at stage 0, 4P + 12P/N at 1, 2P + 14P/N at 2, 16P/N at 3.
    """
    return sum(model_state_terms(zero_stage, parameters, world_size).values())


def model_state_terms(zero_stage: int, parameters: int, world_size: int) -> dict[str, float]:
    """The same by term: a stage divides its own term, and those of the stages below, by the number of ranks."""
    return {
        "parameters": HALF_BYTES * parameters / (world_size if zero_stage >= 3 else 1),
        "gradients": HALF_BYTES * parameters / (world_size if zero_stage >= 2 else 1),
        "optimizer_states": OPTIMIZER_BYTES * parameters / (world_size if zero_stage >= 1 else 1),
    }


def textbook_traffic_bytes(zero_stage: int, parameters: int, world_size: int) -> float:
    """Bytes that a rank sends in a step, by ring collectives: 4P(N-1)/N at stages 0 to 2, 6P(N-1)/N at stage 3.

    An all-reduce of 2P bytes of gradients is a reduce-scatter and an all-gather; stage 3 gathers parameters twice.
    """
    return (6 if zero_stage == 3 else 4) * parameters * (world_size - 1) / world_size


def deepspeed_traffic_bytes(
    zero_stage: int,
    parameters: int,
    world_size: int,
    *,
    gradient_accumulation_steps: int = 1,
    checkpointed_share: float = 0.0,
    max_live: int = 1_000_000_000,
) -> float:
    """Bytes that a rank sends in a step with DeepSpeed 0.19.8 as configured, by ring collectives.

    Times (N-1)/N: 4P at stage 0; 6P at stage 1, which all-reduces gradients and gathers parameters;
    (4 x accumulation + 2)P at stage 2, which all-reduces in every micro-step; at stage 3, in every micro-step, 4P
    while all parameters stay live. Stage 3 beyond `max_live` elements is an approximation: the share of parameters
    that is released is gathered again in backward (2P), and for recomputation (`RECOMPUTE_GATHERS`).
    """
    if zero_stage == 3:
        released = max(0.0, 1 - max_live / parameters)
        again = HALF_BYTES + RECOMPUTE_GATHERS * checkpointed_share
        per_parameter = gradient_accumulation_steps * (4 + again * released)
    else:
        per_parameter = {0: 4.0, 1: 6.0, 2: 4.0 * gradient_accumulation_steps + 2}[zero_stage]
    return per_parameter * parameters * (world_size - 1) / world_size


def sent_bytes_per_step(candidate: Candidate, workload: Workload, settings: ZeroSettings) -> int | None:
    """Bytes that a rank is to send in a step of a candidate (`deepspeed_traffic_bytes`); None without a shape.

    Frozen parameters have no gradients to send; only stage 3 moves them.
    """
    shape = workload.shape
    if shape is None:
        return None
    recomputed = candidate.recomputed_blocks(shape.blocks) * shape.block_parameters
    return round(
        deepspeed_traffic_bytes(
            candidate.zero_stage,
            shape.parameters if candidate.zero_stage == 3 else shape.trainable,
            workload.world_size,
            gradient_accumulation_steps=candidate.gradient_accumulation_steps,
            checkpointed_share=recomputed / shape.parameters,
            max_live=settings.stage3_max_live_parameters,
        )
    )


def activation_bytes(*, layers: int, hidden: int, sequence_length: int, micro_batch: int, interval: int) -> int:
    """Saved for backward in bf16: 16 hidden tensors a token of a block, 1 (its input) of a checkpointed block."""
    checkpointed = _checkpointed(layers, interval)
    tensors = HIDDEN_TENSORS_PER_BLOCK * (layers - checkpointed) + checkpointed
    return HALF_BYTES * tensors * hidden * sequence_length * micro_batch


def recompute_flops_share(layers: int, interval: int) -> float:
    """Extra FLOPs of a step: a forward pass is a third of it, and checkpointed blocks run theirs twice."""
    return _checkpointed(layers, interval) / layers / 3


def _checkpointed(layers: int, interval: int) -> int:
    return -(-layers // interval) if interval else 0
