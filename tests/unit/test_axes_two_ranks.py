"""Two real ranks: hpZ more than once in a process, offload, a race that both lose together, the micro-benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from builders import make_candidate, make_request

from raysweep.candidate import Candidate
from raysweep.constraint import HPZ_KEY, OFFLOAD_KEY
from raysweep.race import Race
from raysweep.serde import to_dict
from raysweep.worker.process import prepare_process

CANDIDATES = {
    "stage 3": make_candidate(zero_stage=3),
    "hpZ": make_candidate(zero_stage=3, deepspeed={HPZ_KEY: 2}),
    "hpZ again": make_candidate(zero_stage=3, deepspeed={HPZ_KEY: 2}),
    "offload at 2": make_candidate(zero_stage=2, deepspeed={OFFLOAD_KEY: "cpu"}),
    "offload at 3": make_candidate(zero_stage=3, deepspeed={OFFLOAD_KEY: "cpu"}),
}


def run_rank(rank: int, folder: str) -> None:
    """Measure every candidate on one of two ranks, then one that is far behind."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    context = prepare_process(rank=rank, local_rank=rank, local_world_size=2, world_size=2, node="here")
    from raysweep.worker.loop import measure_candidate
    from raysweep.worker.micro_benchmark import micro_benchmark

    seen: dict[str, Any] = {"probe": to_dict(micro_benchmark(context, device="cpu", precision="bf16"))}

    def measured(candidate: Candidate, **launch: Any) -> dict[str, Any]:
        return to_dict(measure_candidate(make_request(candidate=candidate, **launch), context))

    for label, candidate in CANDIDATES.items():
        seen[label] = measured(candidate)
    race = Race(best_step_time_s=1e-6, best_log_error=0.0, after_steps=2)
    seen["behind"] = measured(make_candidate(), race=race)
    context.barrier(timeout_s=60)
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("axes_two_ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def _loss(seen: list[dict[str, Any]], label: str) -> float:
    return sum(rank[label]["first_loss"] for rank in seen) / 2


@pytest.mark.parametrize("label", list(CANDIDATES)[1:])
def test_an_axis_changes_how_it_trains_and_not_what(seen: list[dict[str, Any]], label: str) -> None:
    assert _loss(seen, label) == pytest.approx(_loss(seen, "stage 3"), rel=1e-3)


def test_hpz_keeps_a_second_copy_and_may_be_made_again(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["hpZ"]["peak_memory_bytes"] == seen[0]["hpZ again"]["peak_memory_bytes"]
    assert seen[0]["hpZ"]["peak_memory_bytes"] > seen[0]["stage 3"]["peak_memory_bytes"]


def test_both_ranks_stop_at_the_same_step(seen: list[dict[str, Any]]) -> None:
    assert [rank["behind"]["window_end"] for rank in seen] == ["lost", "lost"]
    assert seen[0]["behind"]["step_times_s"] == seen[1]["behind"]["step_times_s"]
    assert len(seen[0]["behind"]["step_times_s"]) == 2


def test_ranks_agree_on_the_micro_benchmark_and_links_have_three_sizes(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["probe"] == seen[1]["probe"]
    for name in ("all_reduce_s", "all_gather_s"):
        assert len(seen[0]["probe"][name]) == 3 and all(seconds > 0 for _, seconds in seen[0]["probe"][name])
