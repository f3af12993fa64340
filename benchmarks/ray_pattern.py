"""The same candidates through warm groups and through the pattern that Ray documents, in turn; one JSON line.

python benchmarks/ray_pattern.py

Ray's pattern is a trial of `ray.tune.Tuner` that starts a `TorchTrainer` of its own. Both sides run the same
measurement with the same steps, in one Ray, with operators that were built before.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.cluster import ray_session
from raysweep.launch.warm_group import GroupSpec, WarmGroup
from raysweep.plan import make_plan
from raysweep.search.requests import RequestMaker
from raysweep.search.searchers import make_searcher
from raysweep.search.tuner import TRIAL_RESOURCES, run_trials
from raysweep.serde import from_dict, to_dict
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import LaunchRequest, Measurement

SWEEP = """\
name: ray_pattern
model: {kind: gpt, blocks: 4, hidden: 128, heads: 4}
data: {kind: text, path: stdlib}
sequence_length: 64
workers: {count: 2, resources_per_worker: {CPU: 1}}
global_batch_size: 16
memory_budget: 1GiB
deepspeed: {zero_optimization: {reduce_bucket_size: 1e6, allgather_bucket_size: 1e6, stage3_prefetch_bucket_size: 1e6}}
space: {zero_stage: [0, 1, 3], activation_checkpoint_interval: [0, 1], micro_batch_size_per_gpu: [4, 8]}
search: {method: grid}
measure: {warmup_max_steps: 4, measured_seconds: 0.5}
environment: {OMP_NUM_THREADS: 1}
"""
AGREES_WITHIN = 0.1
"""Winners that differ agree where each side's winner is at most this much slower than the best on the other side."""

Rates = dict[str, float]


def through_warm_groups(sweep: Sweep, requests: Mapping[str, LaunchRequest], logs: str) -> tuple[float, Rates]:
    """Seconds, and candidate_id -> samples/s."""
    spec = GroupSpec.of_sweep(sweep, sweep_id=f"benchmark-{uuid.uuid4().hex[:8]}", log_folder=logs)
    measured: list[Measurement] = []
    began_s = time.perf_counter()
    with WarmGroup(spec):
        run_trials(
            requests,
            searcher=make_searcher(sweep, make_plan(sweep), {}),
            make_launchers=[partial(BrokerClient.connect, spec.sweep_id, fresh=False)],
            on_launching=lambda candidate_id: None,
            on_measured=measured.extend,
        )
        wall_s = time.perf_counter() - began_s
    return wall_s, {each.candidate_id: each.figures.samples_per_s for each in measured if each.figures}


def through_rays_pattern(sweep: Sweep, requests: Mapping[str, LaunchRequest]) -> tuple[float, Rates]:
    """The same by a fresh TorchTrainer a trial."""
    resources = dict(sweep.file.workers.resources_per_worker)
    plain = {candidate_id: to_dict(request) for candidate_id, request in requests.items()}
    trial = tune.with_resources(
        tune.with_parameters(_one_trainer, requests=plain, resources=resources), TRIAL_RESOURCES
    )
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as storage:
        results = tune.Tuner(
            trial,
            param_space={"candidate_id": tune.grid_search(list(plain))},
            tune_config=tune.TuneConfig(metric="samples_per_s", mode="max", max_concurrent_trials=1),
            run_config=tune.RunConfig(name="pattern", storage_path=storage, verbose=0),
        ).fit()
    wall_s = time.perf_counter() - began_s
    return wall_s, {each.config["candidate_id"]: each.metrics["samples_per_s"] for each in results}


def _one_trainer(config: Mapping[str, Any], *, requests: Mapping[str, Any], resources: dict[str, float]) -> None:
    request = requests[config["candidate_id"]]
    with tempfile.TemporaryDirectory() as storage:
        result = TorchTrainer(
            _train,
            train_loop_config={"request": request},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=request["workload"]["world_size"], resources_per_worker=resources),
            run_config=RunConfig(storage_path=storage),
        ).fit()
    tune.report({"samples_per_s": result.return_value})


def _train(config: Mapping[str, Any]) -> float:
    """Samples a second, as Ray Train hands rank 0's return value on."""
    from raysweep.launch.worker_loop import ready_rank
    from raysweep.worker.loop import measure_candidate

    request = from_dict(LaunchRequest, config["request"])
    report = measure_candidate(request, ready_rank())
    step_s = sorted(report.step_times_s)[len(report.step_times_s) // 2]
    batch = request.workload.global_batch_size or 0
    return batch / step_s


def agree(one: Rates, other: Rates) -> bool:
    """Whether each side's winner is about as fast as the best on the other side."""
    return all(
        theirs[max(ours, key=ours.__getitem__)] >= (1 - AGREES_WITHIN) * max(theirs.values())
        for ours, theirs in ((one, other), (other, one))
    )


def main() -> None:
    """Warm first, so that the operators are built, then Ray's pattern, then warm again to be timed."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "sweep.yaml")
        path.write_text(SWEEP)
        sweep = load_sweep(path)
        requests = RequestMaker(sweep=sweep, memory_budget_bytes=sweep.memory_budget_bytes).make_all(
            make_plan(sweep).admitted
        )
        with ray_session(address=None, environment=sweep.file.environment):
            through_warm_groups(sweep, requests, name)
            fresh_s, fresh = through_rays_pattern(sweep, requests)
            warm_s, warm = through_warm_groups(sweep, requests, name)
    print(
        json.dumps(
            {
                "benchmark": "ray_pattern",
                "candidates": len(requests),
                "wall_ratio": round(fresh_s / warm_s, 2),
                "cold_start_s": round((fresh_s - warm_s) / (len(requests) - 1), 1),
                "winner_agrees": agree(warm, fresh),
                "warm_wall_s": round(warm_s, 1),
                "fresh_wall_s": round(fresh_s, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
