"""What the driver adds to a candidate: no-work candidates through Ray Tune with the real recording; one JSON line.

python benchmarks/driver_overhead.py [--candidates 2000]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from raysweep.launch.cluster import ray_session
from raysweep.measurement import Figures
from raysweep.plan import make_plan
from raysweep.search.recorder import Recorder
from raysweep.search.requests import RequestMaker
from raysweep.search.searchers import make_searcher
from raysweep.search.tuner import run_trials
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import GroupEnd, LaunchRequest, Measurement, TrialStatus
from raysweep.units import MIB

SWEEP = """\
name: driver_overhead
model: {{kind: gpt, blocks: 4, hidden: 32, heads: 2}}
data: {{kind: synthetic}}
sequence_length: 16
workers: {{count: 1}}
global_batch_size: free
memory_budget: 64GiB
space:
  zero_stage: [0, 1, 2, 3]
  activation_checkpoint_interval: [0, 1, 2, 3, 4]
  micro_batch_size_per_gpu: {micro_batches}
search: {{method: grid}}
results: {results}
"""
PER_MICRO_BATCH = 4 * 5


class NoWork:
    """A launcher in the trial's own process that measures nothing: what is left is the driver's part."""

    def launch(self, request: LaunchRequest) -> Measurement:
        step_s = 0.01
        figures = Figures(
            samples_per_s=request.candidate.micro_batch_size_per_gpu / step_s,
            tokens_per_s=16 * request.candidate.micro_batch_size_per_gpu / step_s,
            step_time_s_median=step_s,
            step_time_s_iqr=0.0,
            step_times_s=(step_s,) * 8,
            measured_steps=8,
            warmup_steps=3,
            skipped_steps=0,
            cpu_time_s=0.1,
            first_loss=5.5,
            loss_at_step_5=5.0,
            peak_memory_bytes=MIB,
            build_peak_bytes=MIB,
            resting_bytes=MIB,
            peak_phase="step",
            peak_rank=0,
            peak_node="here",
            recomputed_blocks=0,
            build_s=0.1,
            left_behind_bytes=0,
            reserved_bytes=None,
            device_used_bytes=None,
            memory_pressure=False,
            cycled_data=False,
            device="cpu",
            nodes=("here",),
            worker_pids=(1,),
        )
        return Measurement(
            candidate_id=request.candidate.candidate_id,
            phase=request.phase,
            round=0,
            status=TrialStatus.COMPLETED,
            figures=figures,
            peak_memory_bytes=MIB,
            group_id="none",
            position_in_group=1,
        )

    def recycle(self, reason: str) -> None:
        """There is no group."""

    def group_ends(self) -> list[GroupEnd]:
        """There is no group."""
        return []

    def waits_for(self) -> str:
        """Nothing takes time."""
        return ""

    def close(self, reason: str) -> None:
        """There is no group."""


class Watch:
    """Adds up the time spent in calls of a function."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.spent_s = 0.0

    def __call__(self, *arguments: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return self._function(*arguments)
        finally:
            self.spent_s += time.perf_counter() - began_s


def make_sweep(folder: Path, candidates: int) -> Sweep:
    """A sweep of that many candidates, all of which fit."""
    path = folder / "sweep.yaml"
    micro_batches = list(range(1, candidates // PER_MICRO_BATCH + 1))
    path.write_text(SWEEP.format(micro_batches=micro_batches, results=folder / "results"))
    return load_sweep(path)


def drive(candidates: int) -> dict[str, float]:
    """Seconds for that many candidates: in all, and in our own part of it."""
    with tempfile.TemporaryDirectory() as name:
        sweep = make_sweep(Path(name), candidates)
        plan = make_plan(sweep)
        recorder = Recorder(sweep, plan, resume=False)
        searcher = make_searcher(sweep, plan, {})
        requests = RequestMaker(sweep=sweep, memory_budget_bytes=plan.memory_budget_bytes)
        record = Watch(recorder.measured)
        began_s = time.perf_counter()
        run_trials(
            requests.make_all(searcher.left),
            searcher=searcher,
            make_launchers=[partial(NoWork)],
            on_launching=lambda candidate_id: None,
            on_measured=record,
        )
        wall_s = time.perf_counter() - began_s
        recorder.finished("done")
        recorder.close()
    return {"wall_s": wall_s, "own_s": record.spent_s}


def growth_exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log time over log size: 1 where a candidate costs the same however many there are."""
    return statistics.linear_regression([math.log(n) for n in sizes], [math.log(s) for s in seconds]).slope


def main() -> None:
    """Drive a quarter, a half, and all of the candidates, in one Ray."""
    parser = argparse.ArgumentParser(description="What the driver adds to a candidate.")
    parser.add_argument("--candidates", type=int, default=2000)
    most = parser.parse_args().candidates
    sizes = [most // 4, most // 2, most]
    process = psutil.Process()
    with ray_session(address=None, environment={}):
        drive(PER_MICRO_BATCH)  # what is loaded on first use is no part of growth
        results = [drive(size) for size in sizes[:-1]]
        before_bytes = process.memory_info().rss
        results.append(drive(sizes[-1]))
        grown_bytes = process.memory_info().rss - before_bytes
    print(
        json.dumps(
            {
                "benchmark": "driver_overhead",
                "candidates": most,
                "ms_per_candidate": round(1000 * results[-1]["wall_s"] / most, 2),
                "ms_outside_tune": round(1000 * results[-1]["own_s"] / most, 3),
                "rss_growth_mib": round(grown_bytes / MIB, 1),
                "growth_exponent": round(growth_exponent(sizes, [each["wall_s"] for each in results]), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
