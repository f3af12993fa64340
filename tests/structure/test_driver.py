"""What a process loads: planning nothing heavy, the driver neither DeepSpeed nor CUDA."""

from __future__ import annotations

import json
import subprocess
import sys

LOADED = """
import importlib, json, sys
for name in {modules!r}:
    importlib.import_module(name)
torch = sys.modules.get("torch")
print(json.dumps({{
    "loaded": sorted(name for name in sys.modules if "." not in name),
    "cuda": bool(torch) and torch.cuda.is_initialized(),
}}))
"""


def _after_importing(*modules: str) -> dict[str, object]:
    code = LOADED.format(modules=modules)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return dict(json.loads(run.stdout.splitlines()[-1]))


def test_the_driver_loads_no_deepspeed_and_wakes_no_device() -> None:
    seen = _after_importing("raysweep.search.sweep_run", "raysweep.cli.run")
    assert "deepspeed" not in seen["loaded"] and "ray" in seen["loaded"]
    assert seen["cuda"] is False


def test_the_process_of_a_trial_loads_no_deepspeed_b46() -> None:
    seen = _after_importing("raysweep.search.tuner", "raysweep.launch.broker_client")
    assert "deepspeed" not in seen["loaded"] and seen["cuda"] is False


def test_planning_loads_nothing_heavy() -> None:
    seen = _after_importing("raysweep.cli.main", "raysweep.cli.plan", "raysweep.plan", "raysweep.sketch")
    assert {"torch", "ray", "deepspeed", "pyarrow", "numpy"}.isdisjoint(seen["loaded"])


def test_showing_results_loads_neither_torch_nor_ray() -> None:
    seen = _after_importing("raysweep.cli.main", "raysweep.cli.show")
    assert {"torch", "ray", "deepspeed"}.isdisjoint(seen["loaded"])


def test_export_report_and_comparison_load_neither_torch_nor_ray() -> None:
    verbs = ("raysweep.cli.export", "raysweep.cli.report", "raysweep.cli.compare")
    seen = _after_importing("raysweep.cli.main", *verbs)
    assert {"torch", "ray", "deepspeed"}.isdisjoint(seen["loaded"])


def test_sending_loads_no_torch_and_ray_only_where_ray_is_asked() -> None:
    places = ("raysweep.submit.slurm", "raysweep.submit.kuberay")
    seen = _after_importing("raysweep.cli.main", "raysweep.cli.submit", "raysweep.cli.jobs", *places)
    assert {"torch", "ray", "deepspeed", "kubernetes"}.isdisjoint(seen["loaded"])
    seen = _after_importing("raysweep.submit.ray_jobs")
    assert {"torch", "deepspeed"}.isdisjoint(seen["loaded"])
