"""Nodes of 4 and 2 slots behind a head without any: all six are used, and none is asked of the head."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from on_head import OnHead

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SPACE = {"zero_stage": [2], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [1]}


def test_six_workers_use_four_and_two_slots_and_the_head_none(uneven_nodes: OnHead, tmp_path: Path) -> None:
    path = uneven_nodes.write_sweep(
        "six",
        workers={"count": 6, "resources_per_worker": {"CPU": 1}},
        global_batch_size=6,
        space=SPACE,
        search={"method": "grid", "confirm": False},
    )
    exit_code, output = uneven_nodes.run("run", path, "--no-check", output=tmp_path / "out", timeout_s=280)
    (row,) = uneven_nodes.journal("six")
    _, four, two = uneven_nodes.addresses
    assert (exit_code, row["status"]) == (5, "COMPLETED"), output
    assert Counter(row["nodes"]) == {four: 4, two: 2}
    assert f"6 workers: 4 on {four}, 2 on {two}; no slot is idle" in output


def test_one_worker_more_is_refused_at_once(uneven_nodes: OnHead, tmp_path: Path) -> None:
    path = uneven_nodes.write_sweep(
        "seven", workers={"count": 7, "resources_per_worker": {"CPU": 1}}, global_batch_size=7, space=SPACE
    )
    exit_code, output = uneven_nodes.run("check", path, output=tmp_path / "out")
    assert exit_code == 2 and "available: 6" in output and "(nearest valid: 6)" in output
