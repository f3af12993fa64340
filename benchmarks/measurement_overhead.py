"""Samples/s as raysweep reports them against a plain DeepSpeed loop on the same configs, in turn; one JSON line.

python benchmarks/measurement_overhead.py
"""

from __future__ import annotations

import json
import logging
import tempfile
import uuid
from pathlib import Path

import yaml
from plain_runs import SWEEP, noise_pct, run_plain

from raysweep.ds_config import render
from raysweep.launch.cluster import ray_session
from raysweep.launch.warm_group import GroupSpec, WarmGroup
from raysweep.plan import make_plan
from raysweep.results.interval import paired_log_ratio
from raysweep.search.requests import RequestMaker
from raysweep.sweep_file import load_sweep

SPACE = {
    "zero_stage": [0, 1, 2, 3],
    "activation_checkpoint_interval": [0, 1],
    "micro_batch_size_per_gpu": [4],
    "gradient_accumulation_steps": [2],
}
REPEATS = 3


def main() -> None:
    """Each candidate in a warm group and by the plain loop, one after the other, three times."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    ours: dict[str, list[float]] = {}
    plain: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "sweep.yaml")
        measure = {"measured_steps": 20, "measured_seconds": 0}
        path.write_text(yaml.safe_dump({**SWEEP, "name": "overhead", "space": SPACE, "measure": measure}))
        sweep = load_sweep(path)
        candidates = make_plan(sweep).admitted
        requests = RequestMaker(sweep=sweep, memory_budget_bytes=sweep.memory_budget_bytes).make_all(candidates)
        spec = GroupSpec.of_sweep(sweep, sweep_id=f"benchmark-{uuid.uuid4().hex[:8]}", log_folder=name)
        with ray_session(address=None, environment=sweep.file.environment), WarmGroup(spec) as client:
            for _ in range(REPEATS):
                for candidate in candidates:
                    each = candidate.candidate_id
                    measured = client.launch(requests[each])
                    if measured.figures is None:
                        raise RuntimeError(f"{each}: {measured.reason}")
                    ours.setdefault(each, []).append(measured.figures.samples_per_s)
                    ds_config = render(candidate, workload=sweep.workload, base=sweep.base_ds_config)
                    rate = run_plain(ds_config, interval=candidate.activation_checkpoint_interval)
                    plain.setdefault(each, []).append(rate)
    pairs = [(mine, other) for each in ours for mine, other in zip(ours[each], plain[each], strict=True)]
    ratio = paired_log_ratio(*zip(*pairs, strict=True)).exp()
    print(
        json.dumps(
            {
                "benchmark": "measurement_overhead",
                "configurations": len(ours),
                "repeats": REPEATS,
                "ratio_mean": round(ratio.centre, 4),
                "ratio_low": round(ratio.low, 4),
                "ratio_high": round(ratio.high, 4),
                "noise_pct": round(noise_pct([*ours.values(), *plain.values()]), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
