"""The check on a GPU, as a test where there is one; its steps on the CPU, where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch


def check(*options: str, timeout_s: float) -> dict[str, Any]:
    script = str(Path(__file__).with_name("check.py"))
    process = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return dict(json.loads(process.stdout[process.stdout.index("{\n") :]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_steps_of_the_check_run_on_the_cpu() -> None:
    report = check("--cpu", "--count", "2", timeout_s=580)
    assert [candidate["trace_bytes"] for candidate in report["candidates"]] == [
        candidate["peak_memory_bytes"] for candidate in report["candidates"]
    ]
    assert report["out_of_memory"]["is_oom"] and report["out_of_memory"]["recovers"]
    assert report["warm_is_fresh"] == {"n": 2, "same": 2, "others": []}
    assert "a GPU" in report["not_shown"]


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_predictions_hold_on_this_gpu() -> None:
    report = check(timeout_s=880)
    assert report["max_error_pct"]["allocated_pct"] <= 20
    assert report["out_of_memory"]["is_oom"] and report["out_of_memory"]["recovers"]
    assert report["warm_is_fresh"]["same"] == report["warm_is_fresh"]["n"] > 0
