"""Drives many candidates through warm groups and looks at what grows and what stays behind; one JSON line.

make soak
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

import psutil
from processes import orphaned_shm_bytes

from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.cluster import ray_session
from raysweep.launch.reaper import is_alive
from raysweep.launch.warm_group import GroupSpec, WarmGroup
from raysweep.plan import make_plan
from raysweep.search.requests import RequestMaker
from raysweep.search.searchers import make_searcher
from raysweep.search.tuner import run_trials
from raysweep.sweep_file import load_sweep
from raysweep.trial import Measurement
from raysweep.units import MIB

SWEEP_ID = "soak"
SETTLED_AFTER = 10
"""Candidates after which growth is counted: what is loaded on first use is no part of it."""
SWEEP = """\
name: soak
model: {kind: gpt, blocks: 4, hidden: 32, heads: 2}
data: {kind: text, path: stdlib}
sequence_length: 16
workers: {count: 2, resources_per_worker: {CPU: 0.5}}
global_batch_size: free
memory_budget: 1GiB
deepspeed: {zero_optimization: {reduce_bucket_size: 1e5, allgather_bucket_size: 1e5, stage3_prefetch_bucket_size: 1e5}}
space:
  zero_stage: [0, 1, 2, 3]
  activation_checkpoint_interval: [0, 1, 2, 3, 4]
  micro_batch_size_per_gpu: [1, 2, 3, 4, 5, 6, 7, 8]
search: {method: random, trials: 149}
measure: {warmup_max_steps: 3, measured_seconds: 0.1, deadline_seconds: 120}
environment: {OMP_NUM_THREADS: 1}
"""


def drive(folder: Path) -> tuple[list[Measurement], int]:
    """Every launch, the last one of the first candidate again; and by how much this process has grown, in bytes."""
    path = folder / "sweep.yaml"
    path.write_text(SWEEP)
    sweep = load_sweep(path)
    plan = make_plan(sweep)
    searcher = make_searcher(sweep, plan, {})
    requests = RequestMaker(sweep=sweep, memory_budget_bytes=plan.memory_budget_bytes).make_all(searcher.left)
    spec = GroupSpec.of_sweep(sweep, sweep_id=SWEEP_ID, log_folder=str(folder / "logs"))
    launches: list[Measurement] = []
    rss_bytes: list[int] = []

    def on_measured(measurements: list[Measurement]) -> None:
        launches.extend(measurements)
        rss_bytes.append(psutil.Process().memory_info().rss)

    with ray_session(address=None, environment=sweep.file.environment), WarmGroup(spec) as client:
        run_trials(
            requests,
            searcher=searcher,
            make_launchers=[partial(BrokerClient.connect, SWEEP_ID, fresh=False)],
            on_launching=lambda candidate_id: None,
            on_measured=on_measured,
        )
        launches.append(client.launch(requests[launches[0].candidate_id]))
    return launches, rss_bytes[-1] - rss_bytes[SETTLED_AFTER]


def main() -> None:
    """Drive them and look around."""
    shm_before = orphaned_shm_bytes()
    with tempfile.TemporaryDirectory() as name:
        launches, grown_bytes = drive(Path(name))
    peaks = [launch.peak_memory_bytes or 0 for launch in (launches[0], launches[-1])]
    print(
        json.dumps(
            {
                "benchmark": "soak",
                "candidates": len(launches),
                "completed": sum(launch.figures is not None for launch in launches),
                "groups": len({launch.group_id for launch in launches}),
                "driver_rss_growth_mib": round(grown_bytes / MIB, 1),
                "peak_drift_bytes": peaks[1] - peaks[0],
                "left_behind_bytes": max(launch.figures.left_behind_bytes for launch in launches if launch.figures),
                "processes_left": sum(is_alive(pid) for launch in launches for pid in launch.worker_pids),
                "shm_bytes_left": orphaned_shm_bytes() - shm_before,
            }
        )
    )


if __name__ == "__main__":
    main()
