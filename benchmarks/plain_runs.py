"""Runs `plain_training.py` under torchrun and DeepSpeed's autotuner: the side of a comparison that is not ours."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysweep.worker.build_folder import build_folder

TRAINING = Path(__file__).with_name("plain_training.py")
WORKERS = 2
BASE = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {
        "reduce_bucket_size": 1_000_000,
        "allgather_bucket_size": 1_000_000,
        "stage3_prefetch_bucket_size": 1_000_000,
        "stage3_param_persistence_threshold": 1000,
    },
}
"""What both sides start from; DeepSpeed's default buckets would outweigh the whole model."""

SWEEP = {
    "model": {
        "kind": "hf",
        "config_class": "GPT2Config",
        "overrides": {
            **{"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 256, "n_positions": 128, "use_cache": False},
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        },
    },
    "data": {"kind": "synthetic"},
    "sequence_length": 128,
    "workers": {"count": WORKERS, "resources_per_worker": {"CPU": 1}},
    "global_batch_size": "free",
    "memory_budget": "4GiB",
    "deepspeed": BASE,
    "environment": {"OMP_NUM_THREADS": 1},
}
"""The same model, workers and base config as a sweep; name, space and search are the benchmark's."""


def environment() -> dict[str, str]:
    """What DeepSpeed needs on CPU, with one thread a worker and the operators that raysweep has built before."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(WORKERS), "OMP_NUM_THREADS": "1", "PATH": path}
    return {**os.environ, **own, "TORCH_EXTENSIONS_DIR": str(build_folder())}


def run_plain(ds_config: Mapping[str, Any], *, interval: int, steps: int = 20) -> float:
    """Samples/s of one fresh run.

    Raises:
        RuntimeError: with the end of what it printed, when it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "ds_config.json")
        config.write_text(json.dumps({key: value for key, value in ds_config.items() if key != "autotuning"}))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        command += [str(TRAINING), "--deepspeed_config", str(config)]
        command += ["--interval", str(interval), "--steps", str(steps)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"samples_per_s"')]
    if done.returncode or not lines:
        raise RuntimeError(f"the plain run failed ({done.returncode}): {(done.stdout + done.stderr)[-2000:]}")
    return float(json.loads(lines[-1])["samples_per_s"])


def run_in_turn(runs: Mapping[str, tuple[Mapping[str, Any], int]], *, repeats: int = 3) -> dict[str, list[float]]:
    """Name -> samples/s of each repeat, the runs interleaved; a run is a DeepSpeed config and its interval."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, (ds_config, interval) in runs.items():
            rates[name].append(run_plain(ds_config, interval=interval))
    return rates


def noise_pct(repeats: Sequence[Sequence[float]]) -> float:
    """How far equal runs lay apart: the mean of (largest - smallest) / median, in percent."""
    spreads = [(max(rates) - min(rates)) / statistics.median(rates) for rates in repeats if len(rates) > 1]
    return 100 * statistics.fmean(spreads) if spreads else 0.0
