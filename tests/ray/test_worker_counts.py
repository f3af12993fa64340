"""The number of workers as an axis, in a real sweep: groups of other sizes follow each other in one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import measurements, run, trials, write_sweep

pytestmark = pytest.mark.ray


def test_groups_of_one_and_of_two_workers_measure_the_same_training(tmp_path: Path) -> None:
    space = {"zero_stage": [2], "micro_batch_size_per_gpu": [1, 2], "world_size": [1, 2]}
    search = {"method": "grid", "confirm": False}
    code, output = run(write_sweep(tmp_path, space=space, search=search))
    assert code == 5, output
    rows = trials(tmp_path)
    assert [each["status"] for each in rows] == ["COMPLETED"] * 4, output
    assert sorted(each["world_size"] for each in rows) == [1, 1, 2, 2]
    assert all(
        each["micro_batch_size_per_gpu"] * each["gradient_accumulation_steps"] * each["world_size"] == 8
        for each in rows
    )
    losses = [each["first_loss"] for each in rows]
    assert max(losses) == pytest.approx(min(losses), rel=1e-3) and all(each["loss_parity"] for each in rows)
    assert all(each["scaling_efficiency"] for each in rows)
    launches = measurements(tmp_path)
    assert {len(each["worker_pids"]) for each in launches} == {1, 2}
    assert len({each["group_id"] for each in launches}) == 2
    assert "By the number of workers" in output
