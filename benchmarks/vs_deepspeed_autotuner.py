"""DeepSpeed's autotuner and raysweep in turn, same model and workers; a plain loop measures both winners again.

python benchmarks/vs_deepspeed_autotuner.py

Both search ZeRO stage and micro-batch 1 to 8 at a free global batch; raysweep searches the checkpoint interval, too.
Search: from the first candidate to the last. Total: from the command to the exported config, raysweep's confirmation
included.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from plain_runs import BASE, SWEEP, TRAINING, WORKERS, environment, noise_pct, run_in_turn

from raysweep.results.journal import read_journal
from raysweep.results.paths import ResultsPaths
from raysweep.trial import Measurement, Phase

SPACE = {
    "zero_stage": [0, 1, 2, 3],
    "activation_checkpoint_interval": [0, 1, 2],
    "micro_batch_size_per_gpu": [1, 2, 4, 8],
}


def autotune(folder: Path) -> dict[str, Any]:
    """Run DeepSpeed's autotuner; its best config, seconds, and experiments launched."""
    config = folder / "ds_config.json"
    tuning = {"enabled": True, "fast": True, "max_train_micro_batch_size_per_gpu": 8}
    tuning |= {"start_profile_step": 2, "end_profile_step": 7}
    start = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "steps_per_print": 1_000_000}
    zero = {**BASE["zero_optimization"], "stage": "all"}
    config.write_text(json.dumps({**BASE, **start, "zero_optimization": zero, "autotuning": tuning}))
    command = ["deepspeed", f"--num_gpus={WORKERS}", "--autotuning", "tune", str(TRAINING), "--steps", "60"]
    began_s = time.perf_counter()
    done = subprocess.run(
        [*command, "--deepspeed", "--deepspeed_config", str(config)],
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s = time.perf_counter() - began_s
    best = folder / "autotuning_results" / "ds_config_optimal.json"
    if not best.exists():
        raise RuntimeError(f"the autotuner found nothing ({done.returncode}): {(done.stdout + done.stderr)[-3000:]}")
    experiments = len([each for each in (folder / "autotuning_results").iterdir() if each.is_dir()])
    return {"ds_config": json.loads(best.read_text()), "wall_s": wall_s, "trials": experiments}


def sweep(folder: Path) -> dict[str, Any]:
    """Run raysweep by its command; its best config and interval, seconds of search and in all, and launches."""
    path, results = folder / "sweep.yaml", folder / "results"
    search = {"method": "guided", "trials": 12}
    path.write_text(yaml.safe_dump({**SWEEP, "name": "autotuner", "space": SPACE, "search": search}))
    began_s = time.perf_counter()
    subprocess.run(
        ["raysweep", "run", str(path), "--results", str(results), "--yes"],
        env=environment(),
        check=True,
        capture_output=True,
    )
    wall_s = time.perf_counter() - began_s
    launches = read_journal(ResultsPaths(str(results)).journal).measurements
    searched = [launch for launch in launches if launch.phase is Phase.SEARCH]
    best = yaml.safe_load((results / "best" / "best.yaml").read_text())
    return {
        "ds_config": json.loads((results / "best" / "ds_config.json").read_text()),
        "interval": best["candidate"]["activation_checkpoint_interval"],
        "search_s": search_s(searched),
        "wall_s": wall_s,
        "trials": len(searched),
    }


def search_s(launches: Sequence[Measurement]) -> float:
    """From the first candidate handed out, the start of its workers included, to the last one measured."""
    began = [datetime.fromisoformat(launch.started_at) for launch in launches]
    ends = [start + timedelta(seconds=launch.wall_s) for start, launch in zip(began, launches, strict=True)]
    return (max(ends) - min(began)).total_seconds()


def main() -> None:
    """Print one JSON line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = sweep(folder), autotune(folder)
        rates = run_in_turn(
            {"raysweep": (ours["ds_config"], ours["interval"]), "autotuner": (theirs["ds_config"], 0)}, repeats=5
        )
    ratios = [mine / other for mine, other in zip(rates["raysweep"], rates["autotuner"], strict=True)]
    print(
        json.dumps(
            {
                "benchmark": "vs_deepspeed_autotuner",
                "search_wall_ratio": round(theirs["wall_s"] / ours["search_s"], 2),
                "total_wall_ratio": round(theirs["wall_s"] / ours["wall_s"], 2),
                "throughput_ratio": round(statistics.median(ratios), 3),
                "throughput_ratio_low": round(min(ratios), 3),
                "throughput_ratio_high": round(max(ratios), 3),
                "raysweep": {key: ours[key] for key in ("search_s", "wall_s", "trials")},
                "autotuner": {key: theirs[key] for key in ("wall_s", "trials")},
                "noise_pct": round(noise_pct(list(rates.values())), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
