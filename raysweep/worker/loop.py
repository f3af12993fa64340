"""Measures one candidate from build to teardown; the only way into the training process."""

from __future__ import annotations

import gc
import logging
import os
import time
from typing import Any

from raysweep.errors import OutOfMemory
from raysweep.measurement import RankReport
from raysweep.trial import LaunchRequest
from raysweep.worker.data import Batches
from raysweep.worker.device import Device, open_device
from raysweep.worker.engine import build_engine, clear_stage3_globals
from raysweep.worker.meter import MemoryFigures, Stepper, TimeFigures, clock, weigh
from raysweep.worker.model import open_model
from raysweep.worker.process import RankContext
from raysweep.worker.tracker import held_bytes

LATE_LOSS_STEP = 5
"""The step of `loss_at_step_5`, counted from 1: four updates have shown by then."""


def measure_candidate(request: LaunchRequest, rank: RankContext) -> RankReport:
    """Build the candidate's engine, weigh it, time it, check it, and take it down again. Every rank calls this.

    Raises:
        OutOfMemory: past the budget. With `data["collective"]` on every rank alike, after a clean teardown, so that
            the group can go on; without it on this rank alone (`on_budget: raise`).
        torch.OutOfMemoryError: past the budget on CUDA, on this rank alone.
        NumericsError: a loss that is not finite, or nothing but skipped steps; on every rank.
        ConfigError: what the user wrote about the model cannot be right; on every rank.
        CheckpointMismatch: when other blocks were recomputed than the candidate asks for; on every rank.
    """
    device = open_device(request.workload.device)
    device.start_candidate(request.memory_budget_bytes)
    held_before_bytes = held_bytes(gc.get_objects())
    training = _Training(request, rank, device)
    try:
        memory = training.build_and_weigh()
        if request.workload.device == "cpu":
            training.check_budget(memory)
        timing = clock(training.stepper, request.window, device, request.race)
        report = training.report(memory, timing)
    finally:
        training.tear_down()
    left_behind_bytes = max(0, held_bytes(gc.get_objects()) - held_before_bytes)
    return RankReport(**report, left_behind_bytes=left_behind_bytes)


class _Training:
    """The engine of one candidate and what belongs to it, from the first weight to none left."""

    stepper: Stepper
    _batches: Batches

    def __init__(self, request: LaunchRequest, rank: RankContext, device: Device) -> None:
        self._request = request
        self._rank = rank
        self._device = device
        self._engine: Any = None
        self._build_s = 0.0
        self._blueprint = open_model(request.workload.model)

    def build_and_weigh(self) -> MemoryFigures:
        request = self._request
        limit_bytes = request.memory_budget_bytes if request.on_budget == "raise" else None
        with self._device.gauge(limit_bytes=limit_bytes, rank=self._rank.rank) as gauge:
            began_s = time.perf_counter()
            self._engine, self._counter = build_engine(request, self._blueprint, self._device.place)
            self._build_s = time.perf_counter() - began_s
            self._batches = self._blueprint.batches(request, self._rank.rank)
            self._batches.in_memory_pass = True
            self.stepper = Stepper(
                engine=self._engine,
                batches=self._batches,
                gradient_accumulation_steps=request.candidate.gradient_accumulation_steps,
                device=self._device,
                rank=self._rank,
            )
            memory = weigh(self.stepper, gauge, steps=request.window.memory_pass_steps)
            self._batches.in_memory_pass = False
            return memory

    def check_budget(self, memory: MemoryFigures) -> None:
        """Compare the fullest rank with the budget; all ranks see the same figures, so all agree."""
        budget_bytes = self._request.memory_budget_bytes
        needs = self._rank.gather(max((memory.build_peak_bytes, "build"), (memory.peak_bytes, memory.peak_phase)))
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
        return self._counter.check(self._request.candidate, micro_steps=self.stepper.micro_steps)

    def report(self, memory: MemoryFigures, timing: TimeFigures) -> dict[str, Any]:
        """All of the rank's report that is known before the teardown, checked."""
        losses, usage = self.stepper.losses, self._device.usage()
        return {
            "rank": self._rank.rank,
            "node": self._rank.node,
            "pid": os.getpid(),
            "device": self._device.name(),
            "step_times_s": timing.step_times_s,
            "warmup_steps": timing.warmup_steps,
            "skipped_steps": self.stepper.skipped_steps,
            "cpu_time_s": timing.cpu_time_s,
            "first_loss": losses[0],
            "loss_at_step_5": self._late_loss(),
            "peak_memory_bytes": max(memory.peak_bytes, usage.peak_bytes or 0),
            "build_peak_bytes": memory.build_peak_bytes,
            "resting_bytes": memory.resting_bytes,
            "peak_phase": memory.peak_phase,
            "recomputed_blocks": self._recomputed_blocks(),
            "build_s": self._build_s,
            "reserved_bytes": usage.reserved_bytes,
            "device_used_bytes": usage.device_used_bytes,
            "allocation_retries": usage.allocation_retries,
            "foreign_bytes": usage.foreign_bytes,
            "cycled_data": self._batches.has_cycled,
            "random_forward": self.stepper.random_forward,
            "window_end": timing.window_end,
            "nonpadding_tokens": timing.nonpadding_tokens,
        }

    def _late_loss(self) -> float | None:
        losses = self.stepper.losses
        is_comparable = len(losses) >= LATE_LOSS_STEP and not self._batches.has_worst_case
        return losses[LATE_LOSS_STEP - 1] if is_comparable else None

    def tear_down(self) -> None:
        """Free the engine and what DeepSpeed keeps of it; after a failed build there may be none."""
        if self._engine is not None:
            self._engine.destroy()
        for name in ("stepper", "_engine", "_counter", "_batches", "_blueprint"):
            self.__dict__.pop(name, None)
        if not clear_stage3_globals():
            logging.getLogger(__name__).warning(
                "this DeepSpeed keeps stage 3 engines in a place that is not known here"
            )
        gc.collect()
        self._device.free_caches()
