"""The training of one candidate, whoever takes its steps: its budget, its report, and its end without a trace."""

from __future__ import annotations

import gc
import logging
import os
from typing import Any, Protocol

import torch

from raysweep.errors import OutOfMemory
from raysweep.trial import LaunchRequest
from raysweep.worker.blocks import BlockCounter
from raysweep.worker.device import Device
from raysweep.worker.engine import clear_stage3_globals
from raysweep.worker.meter import MemoryFigures, TimeFigures
from raysweep.worker.process import RankContext
from raysweep.worker.step_log import StepLog

LATE_LOSS_STEP = 5
"""The step of `loss_at_step_5`, counted from 1: four updates have shown by then."""


class Samples(Protocol):
    """What a report says of the samples that were trained on."""

    @property
    def has_cycled(self) -> bool:
        """Whether samples have come a second time."""
        ...

    @property
    def has_worst_case(self) -> bool:
        """Whether the memory pass had batches of its own; later losses then say nothing about training."""
        ...


class Training:
    """The engine of one candidate and what belongs to it, from the first weight to none left."""

    log: StepLog
    counter: BlockCounter
    samples: Samples

    def __init__(self, request: LaunchRequest, rank: RankContext, device: Device) -> None:
        self.request = request
        self.rank = rank
        self.device = device
        self.engine: Any = None
        self.build_s = 0.0

    def run(self) -> dict[str, Any]:
        """Build, weigh and time; all of the rank's report that is known before the teardown, checked."""
        raise NotImplementedError

    def limit_bytes(self) -> int | None:
        """Where the gauge is to stop the candidate by itself."""
        return self.request.memory_budget_bytes if self.request.on_budget == "raise" else None

    def check_budget(self, memory: MemoryFigures) -> None:
        """On CPU compare the fullest rank with the budget; all ranks see the same figures, so all agree.

        Raises:
            OutOfMemory: on every rank.
        """
        if self.request.workload.device != "cpu":
            return
        budget_bytes = self.request.memory_budget_bytes
        needs = self.rank.gather(max((memory.build_peak_bytes, "build"), (memory.peak_bytes, memory.peak_phase)))
        fullest = max(range(len(needs)), key=lambda index: needs[index][0])
        peak_bytes, phase = needs[fullest]
        if budget_bytes is not None and peak_bytes > budget_bytes:
            raise OutOfMemory(
                phase=phase,
                peak_bytes=peak_bytes,
                budget_bytes=budget_bytes,
                rank=fullest,
                recomputed_blocks=self._recomputed_blocks(),
                collective=True,
            )

    def _recomputed_blocks(self) -> int:
        return self.counter.check(self.request.candidate, micro_steps=self.log.micro_steps)

    def report(self, memory: MemoryFigures, timing: TimeFigures) -> dict[str, Any]:
        """All of the rank's report that is known before the teardown, checked."""
        losses, usage = self.log.losses, self.device.usage()
        return {
            "rank": self.rank.rank,
            "node": self.rank.node,
            "pid": os.getpid(),
            "device": self.device.name(),
            "step_times_s": timing.step_times_s,
            "warmup_steps": timing.warmup_steps,
            "skipped_steps": self.log.skipped_steps,
            "cpu_time_s": timing.cpu_time_s,
            "first_loss": losses[0],
            "loss_at_step_5": self._late_loss(),
            "peak_memory_bytes": max(memory.peak_bytes, usage.peak_bytes or 0),
            "build_peak_bytes": memory.build_peak_bytes,
            "resting_bytes": memory.resting_bytes,
            "peak_phase": memory.peak_phase,
            "recomputed_blocks": self._recomputed_blocks(),
            "build_s": self.build_s,
            "reserved_bytes": usage.reserved_bytes,
            "device_used_bytes": usage.device_used_bytes,
            "allocation_retries": usage.allocation_retries,
            "foreign_bytes": usage.foreign_bytes,
            "cycled_data": self.samples.has_cycled,
            "random_forward": self.log.random_forward,
            "data_s": timing.data_s,
            "window_end": timing.window_end,
            "nonpadding_tokens": timing.nonpadding_tokens,
        }

    def _late_loss(self) -> float | None:
        losses = self.log.losses
        is_comparable = len(losses) >= LATE_LOSS_STEP and not self.samples.has_worst_case
        return losses[LATE_LOSS_STEP - 1] if is_comparable else None

    def tear_down(self) -> None:
        """Free the engine and what DeepSpeed keeps of it; after a failed build there may be none."""
        if self.engine is not None:
            self.engine.destroy()
        if self.request.candidate.torch_compile:
            # What was compiled holds the module that it was compiled for.
            torch._dynamo.reset()  # type: ignore[no-untyped-call]
        self.__dict__.clear()
        if not clear_stage3_globals():
            logging.getLogger(__name__).warning(
                "this DeepSpeed keeps stage 3 engines in a place that is not known here"
            )
        gc.collect()
