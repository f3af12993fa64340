"""Real gloo ranks that build and weigh candidates: peaks of each phase and step, and the collectives they called."""

from __future__ import annotations

import gc
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import multimode
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from raysweep.errors import RaysweepError
from raysweep.serde import from_dict, to_dict
from raysweep.trial import LaunchRequest
from raysweep.worker.process import RankContext, prepare_process
from raysweep.worker.tracker import LiveBytesTracker

COUNTED = {
    "all_reduce": "allreduce_",
    "all_gather_into_tensor": "_allgather_base_",
    "reduce_scatter_tensor": "_reduce_scatter_base_",
    "broadcast": "broadcast_",
}
"""Function of torch.distributed -> c10d's name of it."""
AGREED = 4
"""Numbers in fp64 on which the stepper's ranks agree after each step, by an all-reduce of its own."""


def weigh_for_real(
    requests: Sequence[LaunchRequest], *, world_size: int, folder: Path, oracles: int = 0
) -> list[list[dict[str, Any]]]:
    """For each request a report a rank: `phases` (mode of the steady steps' peaks), `resting`, `collectives`, `build`.

    The first `oracles` also have `oracle`: the peak above rest by torch's own allocator events. A request that fails
    has `error` instead.
    """
    (folder / "requests.json").write_text(json.dumps([to_dict(request) for request in requests]))
    mp.spawn(_rank, args=(world_size, str(folder), oracles), nprocs=world_size)
    by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]
    return [list(reports) for reports in zip(*by_rank, strict=True)]


def _rank(rank: int, world_size: int, folder: str, oracles: int) -> None:
    torch.set_num_threads(1)
    calls = _CollectiveCounter()
    # DeepSpeed keeps some of the functions from its start on.
    calls.install()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    context = prepare_process(
        rank=rank, local_rank=rank, local_world_size=world_size, world_size=world_size, node="here"
    )
    requests = [from_dict(LaunchRequest, plain) for plain in json.loads(Path(folder, "requests.json").read_text())]
    reports = []
    for number, request in enumerate(requests):
        try:
            reports.append(_weigh(request, context, calls, has_oracle=number < oracles))
        except (RuntimeError, RaysweepError) as error:
            reports.append({"error": f"{type(error).__name__}: {error}"})
    Path(folder, f"{rank}.json").write_text(json.dumps(reports))


def _weigh(
    request: LaunchRequest, context: RankContext, calls: _CollectiveCounter, *, has_oracle: bool
) -> dict[str, Any]:
    # Behind prepare_process: these modules import DeepSpeed.
    from raysweep.worker.device import CpuDevice
    from raysweep.worker.engine import build_engine, clear_stage3_globals
    from raysweep.worker.meter import Stepper, weigh
    from raysweep.worker.model import open_model

    device, blueprint = CpuDevice(), open_model(request.workload.model)
    device.start_candidate(None)
    with _PhaseLog(rank=context.rank) as tracker:
        engine, _ = build_engine(request, blueprint, device.place)
        batches = blueprint.batches(request, context.rank)
        batches.in_memory_pass = True
        stepper = Stepper(
            engine=engine,
            batches=batches,
            gradient_accumulation_steps=request.candidate.gradient_accumulation_steps,
            device=device,
            rank=context,
        )
        memory = weigh(stepper, tracker, steps=request.window.memory_pass_steps - 1)
        calls.start()
        weigh(stepper, tracker, steps=1)
        tracker.reset_peak()
    report = {
        "phases": tracker.modes(steps_left_out=request.candidate.gradient_accumulation_steps),
        "lowest": dict(memory.phase_peaks_bytes),
        "resting": memory.resting_bytes,
        "build": memory.build_peak_bytes,
        "collectives": calls.counted(),
    }
    if has_oracle:
        report["oracle"] = sorted(_allocator_peak_bytes(stepper.take) for _ in range(3))[1]
    engine.destroy()
    del engine, stepper, batches, blueprint
    clear_stage3_globals()
    gc.collect()
    context.barrier(timeout_s=120)
    return report


def _allocator_peak_bytes(take_step: Callable[[], Any]) -> int:
    """Peak of a step above where it began, by the events of torch's allocator, which sees inside kernels, too."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        take_step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    current_bytes = peak_bytes = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current_bytes += event.nbytes()
        peak_bytes = max(peak_bytes, current_bytes)
    return peak_bytes


class _PhaseLog(LiveBytesTracker):
    """Keeps the peak of every phase of every micro-step."""

    def __init__(self, *, rank: int) -> None:
        super().__init__(rank=rank)
        self._open_phase = self.phase
        self._peaks: dict[str, list[int]] = defaultdict(list)

    def reset_peak(self) -> None:
        self._peaks[self._open_phase].append(self.peak_bytes())
        super().reset_peak()
        self._open_phase = self.phase

    def modes(self, *, steps_left_out: int) -> dict[str, int]:
        """Phase -> commonest peak of a step; the first step, of so many micro-steps, is left out."""
        micro_steps = steps_left_out
        modes = {}
        for phase in ("forward", "backward", "step"):
            peaks = self._peaks[phase]
            steps = [max(peaks[at : at + micro_steps]) for at in range(micro_steps, len(peaks), micro_steps)]
            modes[phase] = min(multimode(steps))
        return modes


class _CollectiveCounter:
    """Wraps torch.distributed and counts calls and bytes."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def install(self) -> None:
        for function, name in COUNTED.items():
            setattr(dist, function, self._wrapped(getattr(dist, function), name))

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
            size_bytes = max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
            is_own = any(tensor.dtype == torch.float64 and tensor.numel() == AGREED for tensor in tensors)
            if not is_own:
                self._calls[name] += 1
                self._bytes[name] += size_bytes
            return function(*args, **kwargs)

        return call

    def start(self) -> None:
        self._calls.clear()
        self._bytes.clear()

    def counted(self) -> Mapping[str, tuple[int, int]]:
        """c10d's name -> calls, bytes."""
        return {name: (self._calls[name], self._bytes[name]) for name in self._calls}
