"""Trains the best configuration of a sweep with Ray Train and DeepSpeed; lies beside ds_config.json and best.yaml."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import yaml
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.model_schema import LOOP_KINDS
from raysweep.serde import from_dict, to_dict
from raysweep.trial import LaunchRequest
from raysweep.workload import Workload

HERE = Path(__file__).parent
CANDIDATE = (
    "zero_stage",
    "activation_checkpoint_interval",
    "micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "torch_compile",
)
STEPS = 1000


def train(config: Mapping[str, Any]) -> None:
    """Train on this rank; Ray Train calls it on every worker."""
    # Here and not above: DeepSpeed must not be imported before the worker knows its rank.
    from raysweep.launch.worker_loop import ready_rank

    rank = ready_rank()
    request = from_dict(LaunchRequest, config["request"])
    if request.workload.model["kind"] in LOOP_KINDS:
        from raysweep.worker.own_training import train_own

        # Your own Trainer or loop; without --steps it ends where your code does.
        train_own(request, rank, steps=config["steps"], save=config["save"])
    else:
        _train_ours(request, rank, steps=config["steps"] or STEPS, save=config["save"])


def _train_ours(request: LaunchRequest, rank: Any, *, steps: int, save: str | None) -> None:
    """A model and its batches in a plain loop."""
    from raysweep.worker.device import open_device
    from raysweep.worker.engine import build_engine
    from raysweep.worker.meter import loss_of
    from raysweep.worker.model import open_model

    place = open_device(request.workload.device).place
    blueprint = open_model(request.workload.model)
    # The weights, the engine, and every k-th block of the model in a checkpoint wrapper.
    engine, _ = build_engine(request, blueprint, place)
    batches = blueprint.batches(request, rank.rank)

    samples = engine.train_batch_size()
    for step in range(1, steps + 1):
        began_s = time.perf_counter()
        for _ in range(engine.gradient_accumulation_steps()):
            batch = {name: tensor.to(place) for name, tensor in next(batches).items()}
            loss = loss_of(engine(**batch))
            engine.backward(loss)
            engine.step()
        if rank.rank == 0:
            rate = samples / (time.perf_counter() - began_s)
            print(f"step {step}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)
    if save:
        engine.save_checkpoint(save)


def main() -> None:
    """Start the workers on a local Ray, or on the cluster at --address."""
    parser = argparse.ArgumentParser(description="Train the best configuration of a sweep with Ray Train.")
    told = f"optimizer steps to take (default: {STEPS}; of your own Trainer or loop, until it ends by itself)"
    parser.add_argument("--steps", type=int, help=told)
    parser.add_argument("--save", help="folder for DeepSpeed's checkpoint after the last step; every node must have it")
    parser.add_argument("--address", help="of a running Ray cluster; without it a Ray is started here")
    given = parser.parse_args()

    best = yaml.safe_load((HERE / "best.yaml").read_text())
    workload = from_dict(Workload, best["workload"])
    request = LaunchRequest(
        candidate=Candidate(**{name: best["candidate"][name] for name in CANDIDATE if name in best["candidate"]}),
        workload=workload,
        ds_config=json.loads((HERE / "ds_config.json").read_text()),
        window=MeasurementWindow(),
    )
    on_cuda = workload.device == "cuda"
    os.environ["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"  # else every line comes twice
    ray.init(address=given.address, runtime_env={"env_vars": dict(workload.environment)})
    TorchTrainer(
        train,
        train_loop_config={
            "request": to_dict(request),
            "steps": given.steps,
            "save": given.save and str(Path(given.save).absolute()),
        },
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if on_cuda else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=workload.world_size, use_gpu=on_cuda, resources_per_worker=best["resources_per_worker"]
        ),
    ).fit()


if __name__ == "__main__":
    main()
