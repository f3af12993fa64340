"""Exported files in the loops of other frameworks, on two workers: what they train with is what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate
from export_builders import make_answer

from raysweep.exports.targets import write_targets
from raysweep.worker.build_folder import build_folder

pytestmark = pytest.mark.timeout(600)  # a new environment builds an operator first
LOOPS = Path(__file__).with_name("export_loops.py")
FIRST = [pytest.param(2, id="stage2")]
OTHERS = [pytest.param(stage, id=f"stage{stage}", marks=pytest.mark.slow) for stage in (0, 1, 3)]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def _answer(stage: int) -> Any:
    # Four blocks with interval 3: blocks 0 and 3 are recomputed.
    return make_answer(
        make_candidate(zero_stage=stage, activation_checkpoint_interval=3, gradient_accumulation_steps=2),
        nodes=("n0", "n0"),
    )


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": str(build_folder()),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _expected(stage: int) -> dict[str, Any]:
    return {
        "world_size": 2,
        "micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "global_batch_size": 8,
        "zero_stage": stage,
        "optimizer_steps": 5,
        "recomputed_blocks": 2,
    }


@pytest.mark.parametrize("stage", FIRST + OTHERS)
def test_accelerate_trains_what_was_measured(tmp_path: Path, stage: int) -> None:
    write_targets(_answer(stage), ["accelerate"], tmp_path)
    folder, report = tmp_path / "accelerate", tmp_path / "report.json"
    launch = ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", "accelerate_deepspeed.yaml"]
    ran = _run([*launch, str(LOOPS), "accelerate", str(folder), str(report)], folder)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(report.read_text()) == _expected(stage)


@pytest.mark.parametrize("stage", FIRST + OTHERS)
def test_the_hf_trainer_trains_what_was_measured_b14(tmp_path: Path, stage: int) -> None:
    write_targets(_answer(stage), ["hf"], tmp_path)
    report = tmp_path / "report.json"
    ran = _run([*TORCHRUN, str(LOOPS), "hf", str(tmp_path / "hf"), str(report)], tmp_path)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(report.read_text()) == _expected(stage) | {"trainers_total": 8}


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("deepspeed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", FIRST + OTHERS)
def test_the_launch_scripts_train_what_was_measured(tmp_path: Path, launcher: str, stage: int) -> None:
    folder = tmp_path / "it's here"
    write_targets(_answer(stage), ["torchrun"], folder)
    script = folder / f"torchrun/launch_{launcher}.sh"
    ran = _run(["-c", f"import os; os.execv({str(script)!r}, ['x', '--steps', '2'])"], tmp_path)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = f"2 workers, micro-batch 2, accumulation 2, stage {stage}, 2 blocks checkpointed, 8 samples a step"
    assert told in ran.stdout and "step 2: loss " in ran.stdout
