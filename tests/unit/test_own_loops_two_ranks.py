"""A Trainer, a DeepSpeed loop and an Accelerate loop on two real ranks, one after the other in the same processes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from worker_builders import request_for

from raysweep.worker.process import prepare_process

LOOPS = {"make_trainer": "trainer", "with_deepspeed": "loop", "with_accelerate": "loop"}
"""Function of tests/ray/own_loops.py -> its kind."""
STAGES = (3, 0, 1, 2)
FOLDER = str(Path(__file__).parents[1] / "ray")


def run_rank(rank: int, folder: str) -> None:
    """Measure every loop at every stage; the order puts each framework's stage 3 before stages that must not see it."""
    torch.set_num_threads(1)
    sys.path.insert(0, FOLDER)
    # Accelerate asks for these where a group is up, as a worker of Ray Train has them; nothing listens there.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    context = prepare_process(rank=rank, local_rank=rank, local_world_size=2, world_size=2, node="here")
    from raysweep.worker.loop import measure_candidate

    seen: dict[str, Any] = {}
    for stage in STAGES:
        for function, kind in LOOPS.items():
            kwargs = {"folder": folder} if kind == "trainer" else {}
            model = {"kind": kind, kind: f"own_loops:{function}", "kwargs": kwargs, "block_lists": []}
            request = request_for(stage, interval=2, accumulation=2, world_size=2)
            workload = replace(request.workload, model={**model, "python_path": FOLDER})
            report = measure_candidate(replace(request, workload=workload), context)
            seen[f"{function} {stage}"] = asdict(report)
    Path(folder, f"seen-{rank}.json").write_text(json.dumps(seen))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=2)
    return folder


def _seen(folder: Path, rank: int) -> dict[str, dict[str, Any]]:
    return dict(json.loads((folder / f"seen-{rank}.json").read_text()))


@pytest.mark.parametrize("function", LOOPS)
def test_each_stage_recomputes_what_is_asked_and_starts_alike(folder: Path, function: str) -> None:
    found = [_seen(folder, rank)[f"{function} {stage}"] for rank in (0, 1) for stage in STAGES]
    assert [report["recomputed_blocks"] for report in found] == [2] * 8
    assert [len(report["step_times_s"]) for report in found] == [2] * 8
    means = [(found[index]["first_loss"] + found[index + 4]["first_loss"]) / 2 for index in range(4)]
    assert means == [pytest.approx(means[0], rel=1e-3)] * 4


@pytest.mark.parametrize("function", LOOPS)
def test_sharding_the_optimizer_states_shows_in_the_peak(folder: Path, function: str) -> None:
    peaks = {stage: _seen(folder, 0)[f"{function} {stage}"]["resting_bytes"] for stage in STAGES}
    assert peaks[1] < peaks[0] and peaks[2] < peaks[0]


def test_ranks_agree_on_the_times(folder: Path) -> None:
    first, second = _seen(folder, 0), _seen(folder, 1)
    assert [first[name]["step_times_s"] for name in first] == [second[name]["step_times_s"] for name in first]


def test_a_trainers_own_total_batch_is_that_of_the_candidate_b14(folder: Path) -> None:
    for rank in (0, 1):
        told = json.loads((folder / f"2-2-{rank}.json").read_text())
        assert told == {"total": 2 * 2 * 2, "world_size": 2, "state": 2}
