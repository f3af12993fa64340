"""What `raysweep plan` prints: every candidate of a small space, a summary of a large one, and all of it as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import write_sweep

from raysweep.cli.plan import plan_json, render_plan
from raysweep.plan import SweepPlan, make_plan
from raysweep.serde import to_dict
from raysweep.sweep_file import Sweep, load_sweep


def _planned(folder: Path, **changes: Any) -> tuple[Sweep, SweepPlan]:
    sweep = load_sweep(write_sweep(folder, **changes))
    return sweep, make_plan(sweep)


def _large(folder: Path, **changes: Any) -> tuple[Sweep, SweepPlan]:
    many = {"space.micro_batch_size_per_gpu": list(range(1, 61)), "global_batch_size": "free", "memory_budget": "2MiB"}
    return _planned(folder, **many | changes)


def test_a_small_space_is_printed_whole(tmp_path: Path) -> None:
    sweep, plan = _planned(tmp_path)
    text = render_plan(sweep, plan)
    assert all(f"\n{candidate_id} " in text for candidate_id in plan.estimates)
    assert "The first" not in text and "largest micro-batch" not in text


def test_a_large_space_is_summed_up_by_stage_and_interval(tmp_path: Path) -> None:
    sweep, plan = _large(tmp_path)
    lines = render_plan(sweep, plan).splitlines()
    assert lines[0] == "tiny: 480 candidates on 2 workers, budget 2.00 MiB a worker"
    assert lines[2].split() == [
        "stage",
        "interval",
        "candidates",
        "admitted",
        "pruned",
        "skipped",
        "largest",
        "micro-batch",
    ]
    admitted = [each for each in plan.admitted if (each.zero_stage, each.activation_checkpoint_interval) == (3, 2)]
    largest = max(each.micro_batch_size_per_gpu for each in admitted)
    assert 0 < len(admitted) < 60
    assert lines[10].split() == ["3", "2", "60", str(len(admitted)), str(60 - len(admitted)), "0", str(largest)]
    assert lines[12] == "The first 20; --json prints all:"
    assert [line.split()[0] for line in lines[15:35]] == list(plan.estimates)[:20] and lines[35] == ""
    assert len(lines) < 70


def test_many_intervals_share_the_line_of_their_stage(tmp_path: Path) -> None:
    changes = {"space.activation_checkpoint_interval": list(range(12)), "space.zero_stage": [0, 1, 2, 3]}
    sweep, plan = _large(tmp_path, **changes)
    lines = render_plan(sweep, plan).splitlines()
    admitted = [each for each in plan.admitted if each.zero_stage == 2]
    assert lines[5].split()[:5] == ["2", "all", "720", str(len(admitted)), str(720 - len(admitted))]
    assert lines[8] == "The first 20; --json prints all:"


def test_a_stage_with_nothing_admitted_has_no_largest_micro_batch(tmp_path: Path) -> None:
    sweep, plan = _large(tmp_path, memory_budget="1MiB")
    stages = {each.zero_stage for each in plan.admitted}
    line = render_plan(sweep, plan).splitlines()[3]
    assert 0 not in stages and stages
    assert line.split() == ["0", "0", "60", "0", "60", "0", "-"]


def test_candidates_that_are_skipped_are_counted(tmp_path: Path) -> None:
    sweep, plan = _large(tmp_path, global_batch_size=120, memory_budget="64MiB")
    # 60 = 120 / 2 workers has twelve divisors up to 60.
    assert render_plan(sweep, plan).splitlines()[3].split() == ["0", "0", "60", "12", "0", "48", "60"]


def test_json_is_what_one_dump_of_everything_gives(tmp_path: Path) -> None:
    sweep, plan = _large(tmp_path, memory_budget="1MiB", name='tiny "candidates": []')
    text = "".join(plan_json(sweep, plan))
    found = json.loads(text)
    assert text == json.dumps(found, indent=2) + "\n"
    assert found["name"] == 'tiny "candidates": []' and found["cost"] == to_dict(plan.cost)
    assert list(found)[-4:] == ["candidates", "recommendation", "cost", "notes"]
    assert len(found["candidates"]) == 480
    for row, plain in zip(plan.rows, found["candidates"], strict=True):
        assert plain["candidate_id"] == row.candidate.candidate_id
        assert plain["status"] == (row.status or "ADMITTED") and plain["reason"] == row.reason
        assert plain["estimate"] == to_dict(plan.estimates[row.candidate.candidate_id])
