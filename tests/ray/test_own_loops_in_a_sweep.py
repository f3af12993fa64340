"""A Trainer and loops of the user's own on two workers: through the command line to a confirmed winner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweeps import run, selection, trials, write_sweep

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
HERE = str(Path(__file__).parent)
SPACE = {"zero_stage": [0, 1, 2, 3], "activation_checkpoint_interval": [0, 2], "micro_batch_size_per_gpu": [2]}


def _sweep(folder: Path, kind: str, function: str, **changes: Any) -> Path:
    model = {"kind": kind, kind: f"own_loops:{function}", "python_path": HERE}
    if kind == "trainer":
        model["kwargs"] = {"folder": str(folder)}
    data = {"kind": "synthetic"}
    return write_sweep(folder, **{"model": model, "data": data, "memory_budget": "64MiB", "space": SPACE} | changes)


def test_a_trainers_own_total_batch_is_that_of_the_record_b14(tmp_path: Path) -> None:
    space = {**SPACE, "zero_stage": [2], "activation_checkpoint_interval": [2]}
    exit_code, output = run(_sweep(tmp_path, "trainer", "make_trainer", space=space, search={"confirm": False}))
    assert exit_code == 5, output
    (row,) = trials(tmp_path)
    assert (row["status"], row["recomputed_blocks"], row["global_batch_size"]) == ("COMPLETED", 2, 8)
    for rank in range(2):
        told = json.loads((tmp_path / f"2-2-{rank}.json").read_text())
        assert told == {"total": 8, "world_size": 2, "state": 2}


LOOPS = [("trainer", "make_trainer"), ("loop", "with_deepspeed"), ("loop", "with_accelerate")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "function"), LOOPS, ids=[function for _, function in LOOPS])
def test_an_own_loop_is_swept_to_a_confirmed_winner(tmp_path: Path, kind: str, function: str) -> None:
    exit_code, output = run(_sweep(tmp_path, kind, function), timeout_s=580)
    assert exit_code == 0, output
    assert selection(tmp_path)["confirmed"]
    rows = trials(tmp_path)
    assert [row["status"] for row in rows] == ["COMPLETED"] * 8, output
    recomputed = {(row["activation_checkpoint_interval"], row["recomputed_blocks"]) for row in rows}
    assert recomputed == {(0, 0), (2, 2)}
    assert [row["first_loss"] for row in rows] == [pytest.approx(rows[0]["first_loss"], rel=1e-3)] * 8
    assert not [row["candidate_id"] for row in rows if row["loss_parity"] is False]
