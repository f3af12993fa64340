"""Mistakes that other tools have made with models and data, each by the kind of the case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import write_sweep

from raysweep.errors import ConfigError
from raysweep.estimate.facts import with_facts
from raysweep.plan import SweepPlan, make_plan
from raysweep.sweep_file import load_sweep
from raysweep.trial import SkipRule, TrialStatus

LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
PLAN = """
import sys, time
from raysweep.cli.main import app
code = app(["plan", sys.argv[1]], standalone_mode=False)
print(sorted({"torch", "transformers", "ray", "deepspeed"} & set(sys.modules)), time.process_time())
sys.exit(code)
"""


def _plan_with_text(folder: Path, *, samples: int, micro_batches: list[int], **changes: Any) -> SweepPlan:
    (folder / "text").write_bytes(b"x" * (16 * samples + 1))
    data = {"kind": "text", "path": str(folder / "text")}
    space = {"space.micro_batch_size_per_gpu": micro_batches, "global_batch_size": "free"}
    return make_plan(load_sweep(write_sweep(folder, data=data, **space, **changes)))


def test_a_batch_larger_than_the_text_is_skipped_b39(tmp_path: Path) -> None:
    plan = _plan_with_text(tmp_path, samples=20, micro_batches=[1, 2, 4, 8, 10, 11, 16, 32, 64])
    skipped = [row for row in plan.rows if row.skip_rule is SkipRule.DATA_TOO_SMALL]
    assert {row.candidate.micro_batch_size_per_gpu for row in skipped} == {11, 16, 32, 64}
    assert {row.status for row in skipped} == {TrialStatus.SKIPPED}
    assert {candidate.micro_batch_size_per_gpu for candidate in plan.admitted} == {1, 2, 4, 8, 10}
    reasons = {row.candidate.micro_batch_size_per_gpu: row.reason for row in skipped}
    assert reasons[11] == "micro-batch 11 x 2 workers needs 22 samples, the text has 20"


def test_a_text_too_small_for_every_candidate_is_wrong_input_b39(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 20 samples of 16 tokens, fewer than the 32 that 2 workers") as caught:
        _plan_with_text(tmp_path, samples=20, micro_batches=[16, 64])
    assert (caught.value.data["key"], caught.value.exit_code) == ("data.path", 2)


def test_a_budget_too_small_is_told_before_a_text_too_small_b39(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"memory_budget: '1\.00 KiB': below the smallest candidate"):
        _plan_with_text(tmp_path, samples=20, micro_batches=[1, 64], memory_budget="1KiB")


def test_a_text_that_only_the_workers_see_skips_nothing_b39(tmp_path: Path) -> None:
    data = {"kind": "text", "path": "/on/the/nodes/*.txt"}
    assert len(make_plan(load_sweep(write_sweep(tmp_path, data=data))).admitted) == 16


def _plan_in_a_process(sweep: Path, cache: Path) -> tuple[str, list[str], float]:
    """What is printed, which heavy packages were loaded, and CPU seconds of the process."""
    run = subprocess.run(
        [sys.executable, "-c", PLAN, str(sweep)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
    )
    assert run.returncode == 0, run.stderr
    *printed, last = run.stdout.strip().splitlines()
    loaded, _, cpu_s = last.rpartition(" ")
    return "\n".join(printed), json.loads(loaded.replace("'", '"')), float(cpu_s)


def test_a_7b_model_is_planned_on_a_laptop_b43(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    changes: dict[str, Any] = {"workers": {"count": 8}, "memory_budget": "28GiB", "sequence_length": 4096}
    sweep = write_sweep(tmp_path, model={"kind": "hf", "config": "config.json"}, **changes)
    first, loaded, _ = _plan_in_a_process(sweep, tmp_path)
    assert "model: 6.74e9 parameters, 32 blocks (model.layers)" in first and loaded == []
    # 20 bytes a parameter and 8 of the largest tensor at stage 0; stage 3 with checkpointing is left to be tried.
    assert "s0-k2-b1-g1: predicted peak 126.5 GiB (step), at least 111.3 GiB, is above the budget of 28.0 GiB" in first
    assert "Rule 4" in first and "s3-k2-b1-g1: " not in first
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_7B, "max_position_embeddings": 2048}))
    with pytest.raises(ConfigError, match=r"sequence_length: 4096: the model has 2048 positions .*nearest valid: 2048"):
        with_facts(load_sweep(sweep), note=lambda text: None)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    again, loaded, cpu_s = _plan_in_a_process(sweep, tmp_path)
    assert (again, loaded) == (first, [])
    assert cpu_s < 1.0
