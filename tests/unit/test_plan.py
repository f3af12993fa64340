"""What a sweep will do, before it does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_workload, write_sweep

from raysweep.budget import MeasurementWindow, SearchBudget
from raysweep.errors import ConfigError
from raysweep.plan import SweepPlan, deadline_s, make_plan, memory_budget_bytes, predicted_seconds, search_order
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import SkipRule, TrialStatus
from raysweep.units import GIB, KIB
from raysweep.workload import ModelShape


def _planned(folder: Path, **changes: Any) -> tuple[Sweep, SweepPlan]:
    sweep = load_sweep(write_sweep(folder, **changes))
    return sweep, make_plan(sweep)


def test_every_candidate_of_the_space_has_a_row(tmp_path: Path) -> None:
    _, plan = _planned(tmp_path)
    assert len(plan.rows) == len(plan.admitted) == len(plan.estimates) == 16
    assert {row.global_batch_size for row in plan.rows} == {8}
    assert all(row.estimated_memory_bytes == plan.estimates[row.candidate.candidate_id].peak_bytes for row in plan.rows)


def test_only_a_lower_bound_above_the_budget_prunes(tmp_path: Path) -> None:
    _, plan = _planned(tmp_path, memory_budget="1MiB")
    for row in plan.rows:
        pruned = plan.estimates[row.candidate.candidate_id].lower_bound_bytes > 1024 * KIB
        assert (row.status is TrialStatus.PRUNED) is pruned
        assert ("above the budget of 1.00 MiB" in row.reason) is pruned
    assert 0 < len(plan.admitted) < 16


def test_an_illegal_micro_batch_is_skipped_with_its_reason(tmp_path: Path) -> None:
    _, plan = _planned(tmp_path, **{"space.micro_batch_size_per_gpu": [2, 3]})
    skipped = [row for row in plan.rows if row.status is TrialStatus.SKIPPED]
    assert len(skipped) == 8 and {row.skip_rule for row in skipped} == {SkipRule.NO_LEGAL_BATCH}
    assert skipped[0].reason == "micro-batch 3 x 2 workers does not divide global_batch_size 8"


def test_a_budget_below_the_smallest_candidate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="below the smallest candidate") as caught:
        _planned(tmp_path, memory_budget="1KiB")
    assert caught.value.data["key"] == "memory_budget" and caught.value.data["nearest"].endswith("KiB")


def test_auto_is_the_device_less_five_percent(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, memory_budget="auto"))
    assert memory_budget_bytes(sweep, device_memory_bytes=80 * GIB) == 76 * GIB
    assert memory_budget_bytes(sweep, device_memory_bytes=None) is None


def test_without_a_known_device_nothing_is_pruned_and_that_is_said(tmp_path: Path) -> None:
    _, plan = _planned(tmp_path, memory_budget="auto")
    assert len(plan.admitted) == 16 and plan.recommendation is None
    assert any("nothing is pruned" in note for note in plan.notes)


def test_the_rule_is_applied_to_the_sweep_s_own_estimates(tmp_path: Path) -> None:
    _, plan = _planned(tmp_path)
    assert plan.recommendation is not None
    assert (plan.recommendation.rule, plan.recommendation.fits) == (1, True)
    assert "of 64.0 MiB" in plan.recommendation.text


def test_the_order_is_random_seeded_and_complete(tmp_path: Path) -> None:
    sweep, plan = _planned(tmp_path)
    order = search_order(sweep, plan)
    assert order == search_order(sweep, plan) != plan.admitted
    assert {c.candidate_id for c in order} == {c.candidate_id for c in plan.admitted}
    other, other_plan = _planned(tmp_path, **{"search.seed": 1})
    assert search_order(other, other_plan) != order


def test_random_search_takes_as_many_as_it_may(tmp_path: Path) -> None:
    sweep, plan = _planned(tmp_path, search={"method": "random", "trials": 5})
    assert plan.cost.trials == 5
    order = search_order(sweep, plan)
    assert (
        sorted(c.candidate_id for c in order) == sorted(c.candidate_id for c in plan.admitted)
        and order != plan.admitted
    )


def test_cost_counts_trials_groups_and_worker_hours(tmp_path: Path) -> None:
    _, plan = _planned(tmp_path)
    # 16 trials and 3 rounds of 2 finalists at 6 s each (3 s overhead, 3 s window), 4 cold starts of 20 s.
    assert (plan.cost.trials, plan.cost.group_starts) == (16, 4)
    assert plan.cost.wall_s == pytest.approx(4 * 20 + (16 + 6) * 6)
    assert plan.cost.worker_hours == pytest.approx(212 * 2 / 3600)


def test_each_key_that_cannot_share_a_process_costs_a_group(tmp_path: Path) -> None:
    axis = {"zero_optimization.round_robin_gradients": [True, False]}
    _, plan = _planned(tmp_path, **{"space.deepspeed": axis, "search.confirm": False})
    assert (plan.cost.trials, plan.cost.group_starts) == (32, 2)


def test_a_forecast_is_six_flops_a_parameter_and_token() -> None:
    shape = ModelShape(parameters=10**9, block_parameters=1, largest_parameter=1, blocks=4, hidden=1, vocab_size=1)
    window = MeasurementWindow(warmup_max_steps=4, measured_steps=3, memory_pass_steps=3)
    workload = make_workload(shape=shape, sequence_length=100, device="cuda")
    # 6 x 1e9 x 200 tokens = 1.2e12 FLOPs at 1e14 a second: 12 ms a step; the window of 3 s is longer.
    assert predicted_seconds(make_candidate(), workload, window) == pytest.approx(6.0)
    # 1.2e12 x 100 accumulation = 1.2 s a step, 10 steps, a third more with every block recomputed.
    slow = make_candidate(gradient_accumulation_steps=100, activation_checkpoint_interval=1)
    assert predicted_seconds(slow, workload, window) == pytest.approx(3 + 12 * 4 / 3)


@pytest.mark.parametrize(("given", "seconds"), [(None, 30.0), (7, 7.0)])
def test_the_deadline_is_the_file_s_or_at_least_thirty_seconds(
    tmp_path: Path, given: float | None, seconds: float
) -> None:
    changes = {} if given is None else {"measure.deadline_seconds": given}
    sweep, plan = _planned(tmp_path, **changes)
    assert deadline_s(plan.admitted[0], sweep) == seconds


def test_the_smaller_limit_of_time_counts() -> None:
    assert SearchBudget(seconds=100, worker_hours=1).seconds_allowed(72) == 50
    assert SearchBudget(seconds=100).seconds_allowed(72) == 100
    assert SearchBudget(trials=3).seconds_allowed(2) is None
