"""Tells from the call stack who made a tensor and who asked for its number."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

KIND_BY_FUNCTION = {
    "setup_buckets": ("deepspeed/runtime/zero/", "reduce_bucket"),
    "all_gather_coalesced": ("deepspeed/runtime/zero/partition_parameters.py", "gathered_parameters"),
    "_all_gather_dtype": ("deepspeed/runtime/zero/partition_parameters.py", "gathered_parameters"),
    "_allgather_param": ("deepspeed/runtime/zero/partition_parameters.py", "gathered_parameters"),
    "wait": ("deepspeed/runtime/zero/partition_parameters.py", "gathered_parameters"),
    "reduce_scatter_coalesced": ("deepspeed/runtime/comm/", "reduction_copies"),
    "allreduce_bucket": ("deepspeed/runtime/zero/stage_1_and_2.py", "reduction_copies"),
    "get_flat_partition": ("deepspeed/runtime/zero/stage_1_and_2.py", "gradients"),
    "copy_grads_in_partition": ("deepspeed/runtime/zero/stage_1_and_2.py", "gradients"),
    "__avg_scatter_grads": ("deepspeed/runtime/zero/stage3.py", "reduction_copies"),
    "_init_group": ("torch/optim/", "optimizer_states"),
    "step": ("torch/optim/", "optimizer_temporaries"),
}
"""Function -> (part of its file's path, kind of what is made in it); the innermost frame that matches decides."""

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
        part, kind = KIND_BY_FUNCTION.get(frame.f_code.co_name, ("", ""))
        if kind and part in frame.f_code.co_filename:
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
