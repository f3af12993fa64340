"""The decision rule: one device, plain data parallelism, stage 2, stage 3, or none of ours, with its reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysweep.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes that a device would need under each choice, and what it has."""

    one_device_bytes: float
    """The whole global batch on one device, nothing sharded."""
    replica_bytes: float
    """A whole replica on each device, one micro-batch."""
    replica_checkpointed_bytes: float
    stage2_bytes: float
    """ZeRO stage 2, every block checkpointed."""
    stage3_bytes: float
    """ZeRO stage 3, every block checkpointed."""
    single_layer_bytes: float
    """One layer's gathered parameters and its activations: no sharding goes below it."""
    budget_bytes: float
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What the rule says, and the numbers that led to it."""

    rule: int
    """1 one device, 2 plain data parallelism, 3 stage 2, 4 stage 3, 5 sharding cannot help."""
    zero_stage: int | None
    """None where no stage helps."""
    checkpointing: bool
    fits: bool
    text: str


def decide(needs: Needs) -> Recommendation:
    """Apply the rule: the first choice that fits, from the least sharding to the most."""
    budget = needs.budget_bytes
    if needs.one_device_bytes <= budget:
        return _one_device(needs)
    if needs.replica_checkpointed_bytes <= budget or needs.replica_bytes <= budget:
        return _data_parallel(needs)
    if needs.stage2_bytes <= budget:
        return _stage2(needs)
    return _stage3(needs) if needs.single_layer_bytes <= budget else _tensor_parallel(needs)


def _one_device(needs: Needs) -> Recommendation:
    return Recommendation(
        rule=1,
        zero_stage=0,
        checkpointing=False,
        fits=True,
        text=(
            f"It fits on one device: the whole global batch needs {_of_budget(needs.one_device_bytes, needs)}. "
            "Use one device: distributed training is always slower per device."
        ),
    )


def _data_parallel(needs: Needs) -> Recommendation:
    checkpointing = needs.replica_bytes > needs.budget_bytes
    needed = needs.replica_checkpointed_bytes if checkpointing else needs.replica_bytes
    only = (
        f", only with activation checkpointing ({format_bytes(needs.replica_bytes)} without)" if checkpointing else ""
    )
    return Recommendation(
        rule=2,
        zero_stage=0,
        checkpointing=checkpointing,
        fits=True,
        text=(
            f"The whole global batch does not fit on one device ({format_bytes(needs.one_device_bytes)}), but a full "
            f"replica fits on each: {_of_budget(needed, needs)}{only}. Use plain data parallelism (stage 0)."
        ),
    )


def _stage2(needs: Needs) -> Recommendation:
    return Recommendation(
        rule=3,
        zero_stage=2,
        checkpointing=True,
        fits=True,
        text=(
            f"A full replica does not fit on a device ({format_bytes(needs.replica_checkpointed_bytes)} with "
            "activation checkpointing): the optimizer state is what is too large. Sharded by stage 2 over "
            f"{needs.world_size} devices it needs {_of_budget(needs.stage2_bytes, needs)}. Use stage 2 with activation "
            "checkpointing, where most models land."
        ),
    )


def _stage3(needs: Needs) -> Recommendation:
    fits = needs.stage3_bytes <= needs.budget_bytes
    text = (
        f"The parameters do not fit on a device: stage 2 needs {format_bytes(needs.stage2_bytes)}. Sharded by stage 3 "
        f"over {needs.world_size} devices, "
    )
    if fits:
        text += f"it needs {_of_budget(needs.stage3_bytes, needs)}. Use stage 3, and measure what it costs."
    else:
        text += (
            f"it still needs {_of_budget(needs.stage3_bytes, needs)}. A single layer takes "
            f"{format_bytes(needs.single_layer_bytes)}, so stage 3 can work on more devices: about "
            f"{_devices_needed(needs)}. Or offload, or add tensor or pipeline parallelism, which are not tried here."
        )
    return Recommendation(rule=4, zero_stage=3, checkpointing=True, fits=fits, text=text)


def _devices_needed(needs: Needs) -> int | str:
    """Devices for stage 3, were all but one layer shared: N' = (stage 3 - layer) x N / (budget - layer)."""
    shared = (needs.stage3_bytes - needs.single_layer_bytes) * needs.world_size
    room = needs.budget_bytes - needs.single_layer_bytes
    return math.ceil(shared / room) if room > 0 else "many more"


def _tensor_parallel(needs: Needs) -> Recommendation:
    return Recommendation(
        rule=5,
        zero_stage=None,
        checkpointing=True,
        fits=False,
        text=(
            f"A single layer does not fit on a device: it needs {_of_budget(needs.single_layer_bytes, needs)}. "
            "Sharding cannot help, because each layer is gathered whole to be computed. Tensor parallelism is needed, "
            "which is not tried here."
        ),
    )


def _of_budget(needed_bytes: float, needs: Needs) -> str:
    return f"{format_bytes(needed_bytes)} of {format_bytes(needs.budget_bytes)}"
