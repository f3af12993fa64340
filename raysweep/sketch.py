"""Plans from a few numbers, without a sweep file: model states, activations, candidates and the decision rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysweep.candidate import ZERO_STAGES, Candidate
from raysweep.memory import RELATIVE_BAND, MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.rule import Needs, decide
from raysweep.serde import to_dict
from raysweep.tables import aligned
from raysweep.units import GIB, format_bytes, gib
from raysweep.workload import ModelShape, Workload
from raysweep.zero import (
    SHARDS,
    activation_bytes,
    deepspeed_traffic_bytes,
    model_state_bytes,
    model_state_terms,
    recompute_flops_share,
    textbook_traffic_bytes,
)

DEVICE = "cuda"
ASSUMED_DEVICE_MEMORY_BYTES = 80 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchInput:
    """A model and a cluster in a few numbers; training is in bf16 with Adam."""

    parameters: int
    devices: int
    layers: int | None = None
    hidden: int | None = None
    sequence_length: int | None = None
    micro_batch_size_per_gpu: int = 1
    activation_checkpoint_interval: int = 1
    device_memory_bytes: int = ASSUMED_DEVICE_MEMORY_BYTES

    def workload(self) -> Workload | None:
        """The workload that the numbers describe, or None where a number of its shape is missing.

        A block has 12 h^2 + 13 h parameters; the vocabulary is not known, so logits are left out.
        """
        if self.layers is None or self.hidden is None or self.sequence_length is None:
            return None
        shape = ModelShape(
            parameters=self.parameters,
            block_parameters=12 * self.hidden**2 + 13 * self.hidden,
            largest_parameter=4 * self.hidden**2,
            blocks=self.layers,
            hidden=self.hidden,
            vocab_size=0,
        )
        return Workload(
            model={"kind": "gpt"},
            shape=shape,
            data={},
            sequence_length=self.sequence_length,
            precision="bf16",
            optimizer={},
            world_size=self.devices,
            device=DEVICE,
        )

    def candidate(self, zero_stage: int, interval: int, *, micro_batch: int | None = None) -> Candidate:
        """A candidate at the given micro-batch, by default the input's own."""
        return Candidate(
            zero_stage=zero_stage,
            activation_checkpoint_interval=interval,
            micro_batch_size_per_gpu=micro_batch or self.micro_batch_size_per_gpu,
        )


def sketch_plan(given: SketchInput) -> dict[str, Any]:
    """The arithmetic of the described model as plain JSON values."""
    activations = _activations(given)
    return {
        "input": to_dict(given),
        "model_states": [_model_states(given, stage) for stage in ZERO_STAGES],
        "activations": activations,
        "totals": [_totals(given, stage, activations) for stage in ZERO_STAGES],
        "candidates": [
            _candidate_row(given, given.candidate(stage, interval))
            for stage in ZERO_STAGES
            for interval in sorted({0, given.activation_checkpoint_interval})
        ],
        "recommendation": to_dict(decide(_needs(given))),
    }


def _model_states(given: SketchInput, zero_stage: int) -> dict[str, Any]:
    size_bytes = model_state_bytes(zero_stage, given.parameters, given.devices)
    share = 3 * recompute_flops_share(given.layers, given.activation_checkpoint_interval) if given.layers else 0.0
    return {
        "zero_stage": zero_stage,
        "gib": gib(size_bytes),
        "bytes": round(size_bytes),
        "shards": SHARDS[zero_stage],
        "textbook_traffic_bytes": round(textbook_traffic_bytes(zero_stage, given.parameters, given.devices)),
        "deepspeed_traffic_bytes": round(
            deepspeed_traffic_bytes(zero_stage, given.parameters, given.devices, checkpointed_share=share)
        ),
    }


def _activations(given: SketchInput) -> dict[str, float | None]:
    if given.layers is None or given.hidden is None or given.sequence_length is None:
        return {"none_checkpointed_gib": None, "checkpointed_gib": None, "extra_flops": None}
    none_checkpointed, checkpointed = (
        gib(
            activation_bytes(
                layers=given.layers,
                hidden=given.hidden,
                sequence_length=given.sequence_length,
                micro_batch=given.micro_batch_size_per_gpu,
                interval=interval,
            )
        )
        for interval in (0, given.activation_checkpoint_interval)
    )
    return {
        "none_checkpointed_gib": none_checkpointed,
        "checkpointed_gib": checkpointed,
        "extra_flops": recompute_flops_share(given.layers, given.activation_checkpoint_interval),
    }


def _totals(given: SketchInput, zero_stage: int, activations: dict[str, float | None]) -> dict[str, Any]:
    states_gib = gib(model_state_bytes(zero_stage, given.parameters, given.devices))
    totals: dict[str, Any] = {"zero_stage": zero_stage}
    for key in ("none_checkpointed_gib", "checkpointed_gib"):
        activations_gib = activations[key]
        totals[key] = None if activations_gib is None else states_gib + activations_gib
    return totals


def _candidate_row(given: SketchInput, candidate: Candidate) -> dict[str, Any]:
    estimate = _estimate(given, candidate)
    prunes = estimate.lower_bound_bytes > given.device_memory_bytes
    reason = (
        f"predicted peak {format_bytes(estimate.peak_bytes)} ({estimate.peak_phase}), at least "
        f"{format_bytes(estimate.lower_bound_bytes)}, is above the device's {format_bytes(given.device_memory_bytes)}"
    )
    return {
        "candidate_id": candidate.candidate_id,
        "zero_stage": candidate.zero_stage,
        "activation_checkpoint_interval": candidate.activation_checkpoint_interval,
        "micro_batch_size_per_gpu": candidate.micro_batch_size_per_gpu,
        "estimate": to_dict(estimate),
        "status": "PRUNED" if prunes else "ADMITTED",
        "reason": reason if prunes else "",
    }


def _estimate(given: SketchInput, candidate: Candidate) -> MemoryEstimate:
    """The closed form where the shape is given, else the model states alone."""
    workload = given.workload()
    if workload is not None:
        return estimate_memory(candidate, workload, ZeroSettings())
    terms = model_state_terms(candidate.zero_stage, given.parameters, given.devices)
    return MemoryEstimate(
        phases={"model_states": {term: round(size) for term, size in terms.items()}},
        peak_phase="model_states",
        peak_bytes=round(sum(terms.values())),
        band=RELATIVE_BAND[DEVICE],
        device=DEVICE,
    )


def _needs(given: SketchInput) -> Needs:
    """What the rule weighs: the same estimates; a single layer is its gathered weights and its activations."""

    def peak(zero_stage: int, interval: int, micro_batch: int) -> int:
        return _estimate(given, given.candidate(zero_stage, interval, micro_batch=micro_batch)).peak_bytes

    micro_batch = given.micro_batch_size_per_gpu
    workload = given.workload()
    layer_bytes = 0.0
    if workload is not None and workload.shape is not None:
        layer_bytes = 2 * workload.shape.block_parameters + activation_bytes(
            layers=1,
            hidden=workload.shape.hidden,
            sequence_length=workload.sequence_length,
            micro_batch=micro_batch,
            interval=0,
        )
    return Needs(
        one_device_bytes=peak(0, 0, micro_batch * given.devices),
        replica_bytes=peak(0, 0, micro_batch),
        replica_checkpointed_bytes=peak(0, 1, micro_batch),
        stage2_bytes=peak(2, 1, micro_batch),
        stage3_bytes=peak(3, 1, micro_batch),
        single_layer_bytes=layer_bytes,
        budget_bytes=given.device_memory_bytes,
        world_size=given.devices,
    )


def render_sketch(sketch: dict[str, Any]) -> str:
    """The sketch as tables for a person."""
    given = sketch["input"]
    activations = sketch["activations"]
    sections = [
        f"{given['parameters']:.3g} parameters in bf16 with Adam on {given['devices']} devices of "
        f"{format_bytes(given['device_memory_bytes'])}"
        + (" (assumed)" if given["device_memory_bytes"] == ASSUMED_DEVICE_MEMORY_BYTES else ""),
        "Model states, a device:\n" + _states_table(sketch),
    ]
    if activations["extra_flops"] is None:
        sections.append("Activations: give --layers, --hidden and --seq-len; the figures below are model states alone.")
    else:
        sections.append(
            f"Activations at micro-batch {given['micro_batch_size_per_gpu']}: "
            f"{activations['none_checkpointed_gib']:.1f} GiB with nothing checkpointed, "
            f"{activations['checkpointed_gib']:.1f} GiB at interval {given['activation_checkpoint_interval']}, "
            f"for {activations['extra_flops']:.0%} more FLOPs"
        )
    sections.append("Candidates, peak as predicted for DeepSpeed 0.19.8:\n" + _candidates_table(sketch["candidates"]))
    sections.append(f"Rule {sketch['recommendation']['rule']}: {sketch['recommendation']['text']}")
    return "\n\n".join(sections)


def _states_table(sketch: dict[str, Any]) -> str:
    header = ["stage", "states GiB", "+ activations", "+ checkpointed", "sent a step, textbook", "DeepSpeed", "shards"]
    return aligned(
        header,
        [
            [
                str(state["zero_stage"]),
                f"{state['gib']:.1f}",
                _one_decimal(total["none_checkpointed_gib"]),
                _one_decimal(total["checkpointed_gib"]),
                format_bytes(state["textbook_traffic_bytes"]),
                format_bytes(state["deepspeed_traffic_bytes"]),
                state["shards"],
            ]
            for state, total in zip(sketch["model_states"], sketch["totals"], strict=True)
        ],
    )


def _candidates_table(rows: list[dict[str, Any]]) -> str:
    header = ["candidate", "stage", "interval", "peak", "phase", "status"]
    table = aligned(
        header,
        [
            [
                row["candidate_id"],
                str(row["zero_stage"]),
                str(row["activation_checkpoint_interval"]),
                format_bytes(row["estimate"]["peak_bytes"]),
                row["estimate"]["peak_phase"],
                row["status"],
            ]
            for row in rows
        ],
    )
    reasons = [f"  {row['candidate_id']}: {row['reason']}" for row in rows if row["reason"]]
    return "\n".join([table, *reasons])


def _one_decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
