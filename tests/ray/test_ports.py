"""Ports that are in use already."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from sweeps import start, write_sweep

pytestmark = pytest.mark.ray
ONE_CANDIDATE = {"zero_stage": [2], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [2]}
DEFAULT_PORT = 29500
"""Of torch and of DeepSpeed."""


def _only_measurement(folder: Path) -> dict[str, Any]:
    entries = [json.loads(line) for line in (folder / "results" / "journal.jsonl").read_text().splitlines()]
    (measured,) = [entry["record"] for entry in entries if entry["kind"] == "measurement"]
    return dict(measured)


def test_two_sweeps_at_once_on_one_machine_whose_default_port_is_taken_b60(tmp_path: Path, address: str) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    with socket.create_server(("", DEFAULT_PORT)):
        runs = []
        for folder in folders:
            folder.mkdir()
            path = write_sweep(folder, search={"method": "grid", "confirm": False}, space=ONE_CANDIDATE)
            runs.append(start(path, "--address", address))
        codes = [run.wait(timeout=280) for run in runs]
    assert codes == [5, 5], [run.output() for run in runs]
    assert [_only_measurement(folder)["status"] for folder in folders] == ["COMPLETED"] * 2
