"""Two real ranks: peaks that repeat to the byte and follow the algebra of what DeepSpeed keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from worker_builders import request_for

from raysweep.errors import OutOfMemory
from raysweep.worker.process import prepare_process

P, BUCKET, LARGEST = 3_233_280, 2_000_000, 4 * 256**2
"""Parameters of 4 blocks of hidden 256, 256 tied tokens, 32 positions; bucket and largest parameter in elements."""


def run_rank(rank: int, folder: str) -> None:
    """Measure every stage on one of two ranks, stage 2 twice, then one budget that is too small."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    context = prepare_process(rank=rank, local_rank=rank, local_world_size=2, world_size=2, node="here")
    from raysweep.worker.loop import measure_candidate

    def request(stage: int, **launch: Any) -> Any:
        return request_for(stage, interval=1, hidden=256, sequence=32, world_size=2, **launch)

    seen: dict[str, Any] = {"name": context.agree_on_name()}
    for label, stage in (("0", 0), ("1", 1), ("2", 2), ("3", 3), ("2 again", 2)):
        report = measure_candidate(request(stage), context)
        seen[label] = [report.peak_memory_bytes, report.step_times_s, report.first_loss]
    try:
        measure_candidate(request(2, memory_budget_bytes=10_000_000), context)
    except OutOfMemory as error:
        seen["oom"] = error.data
    context.barrier(timeout_s=60)
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two_ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("stage", "expected_bytes"),
    [
        ("0", 20 * P + 8 * LARGEST),  # weights, masters, moments; half and full gradients; one update's temporaries
        ("1", 2 * P + 24 * P / 2),
        ("2", 2 * P + 24 * P / 2),
        ("3", 28 * P / 2 + 2 * BUCKET),
    ],
)
def test_peak_of_the_step_follows_the_algebra(seen: list[dict[str, Any]], stage: str, expected_bytes: float) -> None:
    assert max(rank[stage][0] for rank in seen) == pytest.approx(expected_bytes, rel=0.001)


def test_peaks_repeat_to_the_byte(seen: list[dict[str, Any]]) -> None:
    assert [rank["2"][0] for rank in seen] == [rank["2 again"][0] for rank in seen]


def test_ranks_agree_on_times_names_and_verdicts(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["2"][1] == seen[1]["2"][1]
    assert seen[0]["name"] == seen[1]["name"]
    assert seen[0]["oom"] == seen[1]["oom"]
    assert seen[0]["oom"]["peak_bytes"] == max(rank["2"][0] for rank in seen)


def test_mean_first_loss_is_the_same_at_every_stage(seen: list[dict[str, Any]]) -> None:
    means = [sum(rank[stage][2] for rank in seen) / 2 for stage in "0123"]
    assert means == [means[0]] * 4


def test_no_shared_memory_is_left_by_name(seen: list[dict[str, Any]]) -> None:
    assert not list(Path("/dev/shm").glob("deepspeed_allreduce_buffer_*___[01]"))
