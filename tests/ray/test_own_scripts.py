"""Exported scripts of a user's own loop and Trainer, started as a user starts them: by torchrun and by Ray Train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_workload
from export_builders import make_answer

from raysweep.exports.targets import write_targets
from raysweep.worker.build_folder import build_folder

pytestmark = pytest.mark.timeout(600)  # a new environment builds an operator first
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
MODELS: dict[str, dict[str, Any]] = {
    "loop": {"loop": "own_loops:with_deepspeed", "kwargs": {}},
    "trainer": {"trainer": "own_loops:make_trainer"},
}


def run_script(folder: Path, kind: str, target: str, *command: str) -> str:
    """Export a winner of two workers, take three steps, and give what was printed."""
    model = {"kind": kind, "block_lists": [], "python_path": str(Path(__file__).parent)} | MODELS[kind]
    model.setdefault("kwargs", {"folder": str(folder)})
    workload = make_workload(model=model, shape=None, environment={"OMP_NUM_THREADS": "1"})
    candidate = make_candidate(zero_stage=2, activation_checkpoint_interval=2, gradient_accumulation_steps=2)
    changes = {"resources_per_worker": {"CPU": 0.5}}
    write_targets(make_answer(candidate, workload=workload, nodes=("n0", "n0"), **changes), [target], folder)
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": str(build_folder()),
    }
    ran = subprocess.run(
        [sys.executable, *command, "--steps", "3"],
        cwd=folder / target,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("kind", ["loop", pytest.param("trainer", marks=pytest.mark.slow)])
def test_torchrun_trains_in_the_users_loop(tmp_path: Path, kind: str) -> None:
    shown = run_script(tmp_path, kind, "torchrun", *TORCHRUN, "train_deepspeed.py")
    assert "2 workers, micro-batch 2, accumulation 2, stage 2, 3 optimizer steps" in shown


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "trainer"])
def test_ray_train_trains_in_the_users_loop(tmp_path: Path, kind: str) -> None:
    run_script(tmp_path, kind, "ray", "train_ray.py", "--save", str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "latest").read_text() == "global_step3"
