"""Tells from the call stack who made a tensor and who asked for its number."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

KIND_BY_FUNCTION = {
    ("deepspeed/runtime/zero/", "setup_buckets"): "reduce_bucket",
    ("deepspeed/runtime/zero/", "_configure_moe_settings"): "other",
    ("deepspeed/runtime/zero/partition_parameters.py", "all_gather_coalesced"): "gathered_parameters",
    ("deepspeed/runtime/zero/partition_parameters.py", "_all_gather_dtype"): "gathered_parameters",
    ("deepspeed/runtime/zero/partition_parameters.py", "wait"): "gathered_parameters",
    ("deepspeed/runtime/zero/partition_parameters.py", "_allgather_param"): "gathered_parameters",
    ("deepspeed/runtime/comm/", "reduce_scatter_coalesced"): "reduction_copies",
    ("deepspeed/runtime/zero/stage_1_and_2.py", "allreduce_bucket"): "reduction_copies",
    ("deepspeed/runtime/zero/stage_1_and_2.py", "get_flat_partition"): "gradients",
    ("deepspeed/runtime/zero/stage_1_and_2.py", "copy_grads_in_partition"): "gradients",
    ("deepspeed/runtime/zero/stage3.py", "__avg_scatter_grads"): "reduction_copies",
    ("torch/optim/", "_init_group"): "optimizer_states",
    ("torch/optim/", "step"): "optimizer_temporaries",
}
"""(part of the file's path, function) -> kind of what is made in it; the innermost frame that matches decides."""

KIND_BY_PHASE = {
    "build": "parameters_and_states",
    "forward": "activations",
    "backward": "gradients_and_temporaries",
    "step": "update",
}
"""The kind of what is made elsewhere, by the phase in which it is made."""

INDIFFERENT = ("/deepspeed/", "/raysweep/worker/", "/raysweep/estimate/")
"""Parts of the paths of code that asks for step numbers, norms, overflow flags and losses, which change no shape."""


def kind_of_birth(phase: str) -> str:
    """What a tensor made at this moment is, by the code that makes it."""
    for frame in _frames():
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        for (part, name), kind in KIND_BY_FUNCTION.items():
            if name == function and part in file:
                return kind
    return KIND_BY_PHASE[phase]


def place_of_call() -> tuple[str, bool]:
    """The nearest code outside torch as `file:line function`, and whether its question is known to be harmless."""
    for frame in _frames():
        file = frame.f_code.co_filename
        if "/torch/" in file or "/raysweep/estimate/fake_" in file:
            continue
        is_expected = any(part in file for part in INDIFFERENT)
        return f"{file}:{frame.f_lineno} {frame.f_code.co_name}", is_expected
    return "unknown", False


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
