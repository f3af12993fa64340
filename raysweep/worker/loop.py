"""Measures one candidate from build to teardown; the only way into the training process."""

from __future__ import annotations

import gc
import time
from typing import Any

from raysweep.measurement import RankReport
from raysweep.model_schema import LOOP_KINDS
from raysweep.trial import LaunchRequest
from raysweep.worker.device import Device, open_device
from raysweep.worker.engine import build_engine
from raysweep.worker.lent_training import LentTraining
from raysweep.worker.meter import MemoryFigures, Stepper, clock, weigh
from raysweep.worker.model import open_model
from raysweep.worker.process import RankContext
from raysweep.worker.tracker import held_bytes
from raysweep.worker.training import Training


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
    training = _training_of(request, rank, device)
    try:
        report = training.run()
    finally:
        training.tear_down()
        device.free_caches()
    left_behind_bytes = max(0, held_bytes(gc.get_objects()) - held_before_bytes)
    return RankReport(**report, left_behind_bytes=left_behind_bytes)


def _training_of(request: LaunchRequest, rank: RankContext, device: Device) -> Training:
    kind = LentTraining if request.workload.model["kind"] in LOOP_KINDS else _OurTraining
    return kind(request, rank, device)


class _OurTraining(Training):
    """A model and its batches in our own loop."""

    log: Stepper

    def __init__(self, request: LaunchRequest, rank: RankContext, device: Device) -> None:
        super().__init__(request, rank, device)
        self._blueprint = open_model(request.workload.model)

    def run(self) -> dict[str, Any]:
        """See `Training.run`."""
        memory = self._build_and_weigh()
        self.check_budget(memory)
        timing = clock(self.log, self.request.window, self.device, self.request.race)
        return self.report(memory, timing)

    def _build_and_weigh(self) -> MemoryFigures:
        request = self.request
        with self.device.gauge(limit_bytes=self.limit_bytes(), rank=self.rank.rank) as gauge:
            began_s = time.perf_counter()
            self.engine, self.counter = build_engine(request, self._blueprint, self.device.place)
            self.build_s = time.perf_counter() - began_s
            self.samples = batches = self._blueprint.batches(request, self.rank.rank)
            batches.in_memory_pass = True
            self.log = Stepper(
                engine=self.engine,
                batches=batches,
                gradient_accumulation_steps=request.candidate.gradient_accumulation_steps,
                device=self.device,
                rank=self.rank,
            )
            memory = weigh(self.log, gauge, steps=request.window.memory_pass_steps)
            batches.in_memory_pass = False
            return memory
