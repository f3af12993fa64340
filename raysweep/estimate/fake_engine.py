"""Traces one rank of one candidate: the worker's own build and steps in the real engine, with nothing computed."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from raysweep.allocations import AllocationLog
from raysweep.estimate.fake_mode import FakeEngineTracker
from raysweep.estimate.fake_operators import ListingTracker, OperatorList
from raysweep.estimate.fake_world import LoneRank, alone, join_real_world
from raysweep.trace import RankTrace, TraceJob
from raysweep.worker.data import Batches
from raysweep.worker.device import CpuDevice
from raysweep.worker.engine import build_engine
from raysweep.worker.meter import MemoryFigures, Stepper, weigh
from raysweep.worker.model import open_model

KIBIBYTE = 1024
"""Unit of `ru_maxrss` on Linux, in bytes."""

MOST_KINDS = 4
"""Ranks traced of a candidate at most; the fullest count."""


def trace_rank(job: TraceJob, rank: LoneRank) -> RankTrace:
    """Trace one rank, in a process that has joined its world (`join_fake_world`).

    Peaks are those of `raysweep.worker.meter.weigh`: the lowest of each phase over the steps after the first.
    Parameters, gradients and activations are fake tensors on the CPU: they have shapes and sizes and no memory.

    Raises:
        Exception: whatever the model's code raises, which it may do in a real run, too; and torch's own errors for
            operators whose result's shape depends on numbers that are not there.
    """
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    request = job.request
    blueprint = open_model(request.workload.model)
    tracker = FakeEngineTracker(rank=job.rank, copies_reduce_scatter=request.workload.device == "cpu")
    tracker.listed = OperatorList() if job.keeps_operators else None
    device = CpuDevice()
    with alone(), FakeTensorMode(allow_non_fake_inputs=True) as fake_mode, tracker:
        engine, _ = build_engine(request, blueprint, device.place)
        with unset_fake_temporarily():
            batches = blueprint.batches(request, job.rank)
        batches.in_memory_pass = True
        stepper = _CountingStepper(
            engine=engine,
            batches=FakeBatches(batches, fake_mode, tracker),
            gradient_accumulation_steps=request.candidate.gradient_accumulation_steps,
            device=device,
            rank=rank,
        )
        stepper.tracker = tracker
        stepper.begin_at_a_boundary(engine)
        figures = weigh(stepper, tracker, steps=request.window.memory_pass_steps)
        allocations = tracker.allocations()
        tracker.reset_peak()
    return RankTrace(
        rank=job.rank,
        **_peaks(tracker, figures),
        allocations=AllocationLog() if job.keeps_operators else allocations,
        operators=() if tracker.listed is None else tuple(tracker.listed.operators),
        workspace_bytes=tracker.workspace_bytes,
        collectives=tracker.collectives(),
        stand_ins=tracker.stand_ins(),
        ranks_of_a_kind=ranks_of_a_kind(engine.optimizer, request.workload.world_size),
        trace_s=time.perf_counter() - began_s,
        cpu_s=time.process_time() - began_cpu_s,
        resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE,
    )


def weigh_rank(job: TraceJob, *, store: str) -> RankTrace:
    """The same with real tensors and live peers, which meet over the file `store`; once a process."""
    request = job.request
    rank = join_real_world(rank=job.rank, world_size=request.workload.world_size, store=store)
    blueprint = open_model(request.workload.model)
    device = CpuDevice()
    with ListingTracker(rank=job.rank) as tracker:
        tracker.listed.is_open = job.keeps_operators
        engine, _ = build_engine(request, blueprint, device.place)
        batches = blueprint.batches(request, job.rank)
        batches.in_memory_pass = True
        stepper = Stepper(
            engine=engine,
            batches=batches,
            gradient_accumulation_steps=request.candidate.gradient_accumulation_steps,
            device=device,
            rank=rank,
        )
        figures = weigh(stepper, tracker, steps=request.window.memory_pass_steps)
    return RankTrace(
        rank=job.rank,
        build_peak_bytes=figures.build_peak_bytes,
        phase_peaks_bytes=figures.phase_peaks_bytes,
        resting_bytes=figures.resting_bytes,
        operators=tuple(tracker.listed.operators),
    )


def ranks_of_a_kind(optimizer: Any, world_size: int) -> tuple[int, ...]:
    """One rank of each kind of share, the fullest first; rank 0 alone where all ranks keep equal bytes.

    ZeRO stage 2 keeps the whole gradient of each parameter that lies in a rank's share, also where another share has
    a part of it (`params_in_partition` in zero/stage_1_and_2.py). So ranks differ by the parameters that they share.
    """
    groups = getattr(optimizer, "round_robin_bit16_groups", None)
    sizes = getattr(optimizer, "partition_size", None)
    if not groups or not sizes or not getattr(optimizer, "partition_gradients", False):
        return (0,)
    kept = {rank: _kept_elements(groups, sizes, rank) for rank in range(world_size)}
    first: dict[tuple[int, ...], int] = {}
    for rank, elements in kept.items():
        first.setdefault(elements, rank)
    return tuple(sorted(first.values(), key=lambda rank: (-sum(kept[rank]), rank))[:MOST_KINDS])


def _kept_elements(groups: Sequence[Sequence[Tensor]], sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Elements of the parameters that lie, wholly or in part, in a rank's share of each group."""
    kept = []
    for parameters, size in zip(groups, sizes, strict=True):
        begin, elements = 0, 0
        for parameter in parameters:
            if begin < (rank + 1) * size and begin + parameter.numel() > rank * size:
                elements += parameter.numel()
            begin += parameter.numel()
        kept.append(elements)
    return tuple(kept)


class _CountingStepper(Stepper):
    """Counts the collectives of each step anew, so that those of the last one are left; the first step is short."""

    tracker: FakeEngineTracker

    def begin_at_a_boundary(self, engine: Any) -> None:
        """Let the first step have one micro-step: it only makes the optimizer's state."""
        engine.micro_steps = self._gradient_accumulation_steps - 1

    def take(self, *args: Any) -> Any:
        """See `Stepper.take`."""
        self.tracker.start_step()
        whole = self._gradient_accumulation_steps
        self._gradient_accumulation_steps = whole if self.losses else 1
        try:
            return super().take(*args)
        finally:
            self._gradient_accumulation_steps = whole


class FakeBatches:
    """The worker's batches, made for real, with their floats turned fake; bytes are counted once."""

    def __init__(self, batches: Batches, fake_mode: FakeTensorMode, tracker: FakeEngineTracker) -> None:
        self._batches = batches
        self._fake_mode = fake_mode
        self._tracker = tracker
        self.in_memory_pass = True
        self.has_worst_case = batches.has_worst_case
        self.has_cycled = False

    def __next__(self) -> dict[str, Tensor]:
        with self._tracker.passing():
            with unset_fake_temporarily():
                batch = next(self._batches)
            floats = {name: tensor for name, tensor in batch.items() if tensor.is_floating_point()}
            fakes = {name: self._fake_mode.from_tensor(tensor) for name, tensor in floats.items()}
            self._tracker.replace(floats.values(), fakes.values())
            del floats
        return batch | fakes


def _peaks(tracker: FakeEngineTracker, figures: MemoryFigures) -> dict[str, Any]:
    return {
        "build_peak_bytes": figures.build_peak_bytes,
        "phase_peaks_bytes": figures.phase_peaks_bytes,
        "phase_kinds_bytes": {
            phase: next(
                {kind: size_bytes for kind, size_bytes in kinds.items() if size_bytes}
                for closed, closed_bytes, kinds in reversed(tracker.closed_phases)
                if closed == phase and closed_bytes == peak_bytes
            )
            for phase, peak_bytes in figures.phase_peaks_bytes.items()
        },
        "resting_bytes": figures.resting_bytes,
    }
