"""Sweeps on a Ray cluster that is there already."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sweeps import run, write_sweep

pytestmark = pytest.mark.ray


def test_eight_workers_on_four_slots_are_refused_at_once_b48(tmp_path: Path, address: str) -> None:
    path = write_sweep(tmp_path, workers={"count": 8, "resources_per_worker": {"CPU": 1}}, global_batch_size=16)
    began_s = time.monotonic()
    exit_code, output = run(path, "--address", address)
    assert exit_code == 2
    assert time.monotonic() - began_s < 15
    assert "asked: 8 workers of 1 CPU each; available: 4" in output
    assert not (tmp_path / "results").exists()


def test_no_cluster_at_the_address_ends_with_code_4(tmp_path: Path) -> None:
    exit_code, output = run(write_sweep(tmp_path), "--address", "127.0.0.1:1")
    assert exit_code == 4
    assert "cannot join Ray at 127.0.0.1:1" in output and "Traceback" not in output
