"""Requests for the smallest trainings, and the single rank that runs them in the test's own process."""

from __future__ import annotations

import functools
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.trial import LaunchRequest
from raysweep.worker.process import RankContext, prepare_process
from raysweep.workload import Workload

QUICK = MeasurementWindow(warmup_min_steps=1, warmup_max_steps=1, measured_steps=2, measured_s=0.0, memory_pass_steps=3)
STANDARD_LIBRARY = {"kind": "text", "path": "stdlib"}


def request_for(
    stage: int,
    *,
    interval: int = 0,
    micro_batch: int = 2,
    accumulation: int = 1,
    precision: str = "bf16",
    hidden: int = 32,
    sequence: int = 16,
    world_size: int = 1,
    data: Mapping[str, Any] | None = None,
    learning_rate: float = 1e-3,
    **launch: Any,
) -> LaunchRequest:
    """A launch of a GPT of 4 blocks and 256 tokens."""
    model = {"kind": "gpt", "blocks": 4, "hidden": hidden, "heads": 4, "vocab_size": 256, "positions": sequence}
    return LaunchRequest(
        candidate=Candidate(
            zero_stage=stage,
            activation_checkpoint_interval=interval,
            micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=accumulation,
        ),
        workload=Workload(
            model=model,
            shape=None,
            data=data or {"kind": "synthetic"},
            sequence_length=sequence,
            precision=precision,
            optimizer={},
            world_size=world_size,
        ),
        ds_config=_config(stage, micro_batch, accumulation, precision, learning_rate),
        **{"window": QUICK, **launch},
    )


def with_own_code(request: LaunchRequest, kind: str, folder: Path, function: str, /, **kwargs: Any) -> LaunchRequest:
    """The same launch with a factory, a trainer or a loop of the user's (`kind`), `module:function` in a folder."""
    model = {"kind": kind, kind: function, "kwargs": kwargs, "block_lists": [], "python_path": str(folder)}
    return replace(request, workload=replace(request.workload, model=model))


def _config(stage: int, micro_batch: int, accumulation: int, precision: str, learning_rate: float) -> dict[str, Any]:
    zero = {"stage": stage, "reduce_bucket_size": 2_000_000, "allgather_bucket_size": 2_000_000}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": 1_000_000, "stage3_param_persistence_threshold": 1000}
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": learning_rate, "torch_adam": True}},
        "zero_optimization": zero,
        "steps_per_print": 10**9,
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


@functools.cache
def single_rank() -> RankContext:
    """This process as the only rank of a group; made once."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return prepare_process(rank=0, local_rank=0, local_world_size=1, world_size=1, node="here")


class ScriptedEngine:
    """Stands in for a DeepSpeed engine: its losses, its skipped steps and its pace are given."""

    def __init__(self, losses: Iterator[float], *, step_s: float = 0.0, overflows: Container[int] = ()) -> None:
        self._losses = losses
        self._step_s = step_s
        self._overflows = overflows
        self._steps = 0
        self.skipped_steps = 0

    def __call__(self, **batch: Tensor) -> Tensor:
        time.sleep(self._step_s)
        return torch.tensor(next(self._losses))

    def backward(self, loss: Tensor) -> None:
        """Nothing to do."""

    def step(self) -> None:
        """Skip the update where the script says so."""
        self._steps += 1
        self.skipped_steps += self._steps in self._overflows
