"""Real worker groups that lose a rank, are resumed, or are interrupted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from processes import actor_pids
from sweep_faults import every_candidate_fails, interrupted_with_data_loaders
from sweeps import (
    alive,
    kill,
    measurements,
    pid_of,
    run,
    selection,
    start,
    trials,
    wait_for_line,
    worker_logs,
    write_sweep,
)

pytestmark = pytest.mark.ray

SPACE = {"zero_stage": [1, 2], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [2, 4]}


def test_a_killed_rank_costs_a_group_and_not_the_sweep_b47(tmp_path: Path, address: str) -> None:
    search = {"method": "grid", "confirm": False}
    space = {**SPACE, "zero_stage": [0, 1, 2, 3]}
    path = write_sweep(tmp_path, space=space, search=search, measure={"measured_seconds": 1.0})
    process = start(path, "--address", address)
    log = _first_log(tmp_path, rank=1)
    wait_for_line(log, "candidate ", count=2)
    kill(pid_of(log))
    most_trials = 0
    while process.poll() is None:
        most_trials = max(most_trials, len(actor_pids("ImplicitFunc", under=os.getpid())))
        time.sleep(0.5)
    assert process.returncode == 5, process.output()
    assert 1 <= most_trials <= 2
    rows = measurements(tmp_path)
    lost = [row for row in rows if row["failure_kind"] == "infrastructure"]
    assert len(lost) == 1 and "rank 1" in lost[0]["reason"]
    assert [row["status"] for row in rows if row["phase"] == "retry"] == ["COMPLETED"]
    assert [(row["status"], row["recomputed_blocks"]) for row in trials(tmp_path)] == [("COMPLETED", 0)] * 8
    assert selection(tmp_path)["winner"]
    assert not alive({pid for row in rows for pid in row["worker_pids"]})


def test_a_killed_sweep_runs_only_the_rest_from_a_folder_that_was_moved_b53(tmp_path: Path) -> None:
    space = {"zero_stage": [0, 1, 2, 3], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [1, 2]}
    one = {"count": 1, "resources_per_worker": {"CPU": 0.5}}
    search = {"method": "grid", "confirm": False}
    # Long enough for the second driver to come while the first is at work.
    measure = {"measured_seconds": 2.5, "warmup_max_steps": 4}
    path = write_sweep(tmp_path, space=space, search=search, workers=one, measure=measure, launcher="in_process")
    process = start(path)
    journal = tmp_path / "results/journal.jsonl"
    wait_for_line(journal, '"kind":"measurement"', count=1)
    second = start(path, "--resume")
    assert second.wait(timeout=60) == 2 and "a sweep is writing here" in second.output()
    wait_for_line(journal, '"kind":"measurement"', count=5)
    kill(process.pid)
    process.wait(timeout=20)
    measured = [row["candidate_id"] for row in _journal_rows(journal)]
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    exit_code, output = run(path, "--resume", "--results", "elsewhere")
    assert exit_code == 5, output
    again = [row["candidate_id"] for row in _journal_rows(tmp_path / "elsewhere/journal.jsonl")]
    assert again[: len(measured)] == measured
    assert len(again) == len(set(again)) == 8


def _journal_rows(journal: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    return [entry["record"] for entry in entries if entry["kind"] == "measurement"]


def test_resume_runs_infrastructure_failures_again_and_nothing_else_b01(tmp_path: Path) -> None:
    # What is resumed is decided by the records, whatever the launcher; this one starts fastest.
    path = write_sweep(
        tmp_path,
        space=SPACE,
        search={"method": "grid", "confirm": False},
        workers={"count": 1, "resources_per_worker": {"CPU": 0.5}},
        launcher="in_process",
    )
    assert run(path)[0] == 5
    journal = tmp_path / "results/journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    launches = [entry["record"] for entry in entries if entry["kind"] == "measurement"]
    failed, out_of_memory = launches[0], launches[1]
    failed.update(status="FAILED", failure_kind="infrastructure", reason="rank 0: node lost", figures=None)
    out_of_memory.update(status="OOM", memory_kind="device", reason="rank 0: too large", figures=None)
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert run(path, "--resume")[0] == 5
    assert [row["candidate_id"] for row in measurements(tmp_path)[4:]] == [failed["candidate_id"]]
    status = {row["candidate_id"]: row["status"] for row in trials(tmp_path)}
    assert status[failed["candidate_id"]] == "COMPLETED"
    assert status[out_of_memory["candidate_id"]] == "OOM"


def _first_log(folder: Path, *, rank: int) -> Path:
    end = time.monotonic() + 200
    while time.monotonic() < end:
        logs = worker_logs(folder, rank)
        if logs:
            return logs[0]
        time.sleep(0.1)
    raise AssertionError("no worker came up")


def test_a_sweep_in_which_all_fails_says_of_what_and_leaves_no_best_b07_b57(tmp_path: Path) -> None:
    one = {"count": 1, "resources_per_worker": {"CPU": 0.5}}
    wrong = every_candidate_fails(tmp_path, workers=one, launcher="in_process")
    assert not wrong, wrong


def test_ctrl_c_leaves_no_process_and_keeps_what_was_measured_b71(tmp_path: Path) -> None:
    wrong = interrupted_with_data_loaders(tmp_path)
    assert not wrong, wrong
