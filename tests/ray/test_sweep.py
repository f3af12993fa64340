"""A whole sweep over real workers: search in one warm group, confirmation, export, records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil
import pytest
import yaml
from sweeps import alive, descendants, measurements, run, selection, start, trials, write_sweep

from raysweep.serde import sha256_of

pytestmark = pytest.mark.ray


class Ran:
    """A finished sweep, with what was seen of its processes while it ran."""

    def __init__(self, folder: Path) -> None:
        space = {
            "zero_stage": [0, 3],
            "activation_checkpoint_interval": [2],
            "micro_batch_size_per_gpu": [1],
        }
        process = start(write_sweep(folder, space=space))
        names: dict[int, str] = {}
        while process.poll() is None:
            for child in descendants(process.pid):
                names.setdefault(child.pid, _name(child))
            time.sleep(0.5)
        self.exit_code = process.returncode
        self.output = process.output()
        self.process_names = set(names.values())
        self.left = alive(set(names))
        self.folder = folder
        self.trials = trials(folder)
        self.measurements = measurements(folder)
        self.selection = selection(folder)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("a sweep with spaces"))


def test_it_ends_with_a_confirmed_winner(ran: Ran) -> None:
    assert ran.exit_code == 0, ran.output
    assert ran.selection["confirmed"]
    assert "Winner, confirmed" in ran.output


def test_every_row_completed_within_the_budget_and_the_fastest_confirmed_won(ran: Ran) -> None:
    assert len(ran.trials) == 2
    assert all(row["status"] == "COMPLETED" for row in ran.trials), ran.output
    assert all(row["peak_memory_bytes"] <= row["memory_budget_bytes"] for row in ran.trials)
    confirmed = {row["candidate_id"]: row for row in ran.trials if row["confirmed"]}
    winner = confirmed[ran.selection["winner"]]
    fastest = max(confirmed.values(), key=lambda row: row["confirmed_samples_per_s"])
    tied_with_less = winner["peak_memory_bytes"] < fastest["peak_memory_bytes"]
    assert winner is fastest or tied_with_less


@pytest.mark.slow
def test_three_workers_make_the_global_batch_of_nine_b13(tmp_path: Path) -> None:
    path = write_sweep(
        tmp_path,
        workers={"count": 3, "resources_per_worker": {"CPU": 0.3}},
        space={"zero_stage": [2, 3], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [1]},
        global_batch_size=9,
        search={"method": "grid", "confirm": False},
    )
    exit_code, output = run(path)
    assert exit_code == 5, output
    rows = trials(tmp_path)
    assert {row["status"] for row in rows} == {"COMPLETED"} and len({row["first_loss"] for row in rows}) == 1
    batches = {(row["world_size"], row["gradient_accumulation_steps"], row["global_batch_size"]) for row in rows}
    assert batches == {(3, 3, 9)}


def test_recomputed_blocks_follow_the_interval_b28(ran: Ran) -> None:
    recomputed = {(row["activation_checkpoint_interval"], row["recomputed_blocks"]) for row in ran.trials}
    assert recomputed == {(2, 2)}


def test_equal_batches_train_equally_at_every_stage(ran: Ran) -> None:
    assert len({row["first_loss"] for row in ran.trials}) == 1
    assert all(row["loss_parity"] for row in ran.trials)


def test_the_search_used_one_group_and_confirmation_three_fresh_ones(ran: Ran) -> None:
    groups = defaultdict(set)
    for row in ran.measurements:
        groups[row["phase"]].add(row["group_id"])
    assert len(groups["search"]) == 1
    assert len(groups["confirm"]) == 3
    assert not groups["search"] & groups["confirm"]


def test_pids_change_only_with_the_group_and_each_group_has_an_end(ran: Ran) -> None:
    pids = defaultdict(set)
    for row in ran.measurements:
        pids[row["group_id"]].add(tuple(row["worker_pids"]))
    assert all(len(of_group) == 1 for of_group in pids.values())
    assert len({next(iter(of_group)) for of_group in pids.values()}) == len(pids)
    assert all(row["group_end_reason"] for row in ran.trials)


def test_the_exported_config_is_the_one_that_was_measured(ran: Ran) -> None:
    exported = json.loads((ran.folder / "results/best/ds_config.json").read_text())
    winner = [row for row in ran.measurements if row["candidate_id"] == ran.selection["winner"]]
    assert {row["ds_config_sha256"] for row in winner} == {sha256_of(exported)}
    best = yaml.safe_load((ran.folder / "results/best/best.yaml").read_text())
    assert best["candidate"]["candidate_id"] == ran.selection["winner"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_exported_script_trains(ran: Ran) -> None:
    script = ran.folder / "results/best/train_ray.py"
    command = [sys.executable, str(script), "--steps", "20", "--save", str(ran.folder / "saved")]
    done = subprocess.run(command, cwd=ran.folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d+)", done.stdout + done.stderr)]
    assert len(losses) == 20 and losses[-1] < losses[0]
    # At stage 0 DeepSpeed keeps the optimizer in the model's file.
    assert list((ran.folder / "saved").glob("global_step20/*_states.pt"))


def test_nothing_but_ray_starts_processes_b04_b02(ran: Ran) -> None:
    assert not ran.process_names & {"ssh", "pdsh", "mpirun", "mpiexec", "srun"}


def test_no_process_and_no_shared_memory_is_left(ran: Ran) -> None:
    assert not ran.left
    ports = {line for log in (ran.folder / "results/logs").iterdir() for line in log.read_text().split() if line}
    assert not [path for path in Path("/dev/shm").glob("deepspeed_allreduce_buffer_*") if path.name in ports]
