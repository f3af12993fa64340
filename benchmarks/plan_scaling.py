"""How the plan grows with the space: seconds and memory for 10^3 candidates and more; one JSON line.

python benchmarks/plan_scaling.py [--most 1000000]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from raysweep.plan import make_plan
from raysweep.sweep_file import load_sweep
from raysweep.units import MIB

STAGES, INTERVALS = 4, 25
REPEATS = 3


def plan_once(candidates: int) -> tuple[float, float]:
    """Seconds from the file to the plan, and the process's largest resident size in MiB."""
    sweep = {
        "name": "scaling",
        "model": {"kind": "gpt", "blocks": 24, "hidden": 1024, "heads": 16, "vocab_size": 50257},
        "data": {"kind": "synthetic"},
        "sequence_length": 1024,
        "workers": {"count": 8, "resources_per_worker": {"CPU": 1, "GPU": 1}},
        "global_batch_size": "free",
        "memory_budget": "80GiB",
        "space": {
            "zero_stage": list(range(STAGES)),
            "activation_checkpoint_interval": list(range(INTERVALS)),
            "micro_batch_size_per_gpu": list(range(1, candidates // (STAGES * INTERVALS) + 1)),
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sweep.yaml")
        path.write_text(yaml.safe_dump(sweep))
        began_s = time.perf_counter()
        plan = make_plan(load_sweep(path))
        wall_s = time.perf_counter() - began_s
    assert len(plan.rows) == candidates, len(plan.rows)
    return wall_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB


def main() -> None:
    """Each size in a process of its own, three times; the exponent between the smallest and the largest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--once", type=int, default=0, help="plan this many candidates in this process")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(plan_once(arguments.once)))
        return
    sizes = [size for size in (10**3, 10**4, 10**5, 10**6) if size <= arguments.most]
    seconds: dict[int, float] = {}
    rss_mib: dict[int, float] = {}
    for size in sizes:
        command = [sys.executable, __file__, "--once", str(size)]
        runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(REPEATS)]
        seconds[size], rss_mib[size] = min(run[0] for run in runs), min(run[1] for run in runs)
    growth = math.log(seconds[sizes[-1]] / seconds[sizes[0]]) / math.log(sizes[-1] / sizes[0])
    print(
        json.dumps(
            {
                "benchmark": "plan_scaling",
                "candidates": sizes,
                "seconds": [round(seconds[size], 2) for size in sizes],
                "rss_mib": [round(rss_mib[size], 1) for size in sizes],
                "largest_s": round(seconds[sizes[-1]], 2),
                "largest_rss_mib": round(rss_mib[sizes[-1]], 1),
                "growth_exponent": round(growth, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
