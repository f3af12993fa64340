"""Recorded grids: truth and launches come from different rounds, ties are told, what is unsettled is launched again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from grid_data import (
    at_one_pace,
    best_of,
    load_grid,
    near_best,
    noise_pct,
    read_rows,
    rounds_of,
    to_launch_again,
    unsettled,
    whole_rounds,
)
from replay import play
from step_time_accuracy import first_trials

RECORDED = Path(__file__).parent / "data" / "recorded_grid.parquet"
"""Four rounds of 16 candidates on a machine that was busy with other work: real rows, and of no other use."""


def _rounds(**steps_s: tuple[float, ...]) -> dict[str, dict[int, float]]:
    return {name: dict(enumerate(times, start=1)) for name, times in steps_s.items()}


def test_a_failed_launch_is_missing_in_its_round_only() -> None:
    rows = [
        {"candidate_id": "a", "round": 1, "status": "COMPLETED", "step_time_s_median": 1.0},
        {"candidate_id": "a", "round": 2, "status": "FAILED", "step_time_s_median": None},
        {"candidate_id": "a", "round": 3, "status": "COMPLETED", "step_time_s_median": 1.5},
    ]
    assert rounds_of(rows) == {"a": {1: 1.0, 3: 1.5}}


def test_near_the_best_is_within_ten_percent_by_pairs() -> None:
    rounds = _rounds(best=(1.0, 2.0, 1.0), near=(1.05, 2.1, 1.05), far=(1.3, 2.6, 1.3))
    assert best_of(rounds) == "best"
    assert near_best(rounds) == ["best", "near"]


def test_a_difference_is_settled_by_its_paired_interval() -> None:
    steady = _rounds(best=(1.0, 2.0, 1.0), near=(1.05, 2.1, 1.05))
    assert unsettled(steady) == []  # the rounds differ by a factor of two, the pairs not at all
    shaky = _rounds(best=(1.0, 1.0, 1.0), near=(1.0, 1.1, 1.02))
    assert unsettled(shaky) == ["near"]


def test_one_fast_launch_is_enough_to_be_launched_again_until_it_had_its_rounds() -> None:
    rounds = _rounds(best=(1.0, 1.0, 1.0), lucky=(1.05, 1.4), far=(1.3, 1.6), known=(1.05, 1.05, 1.05))
    assert to_launch_again(rounds, most_rounds=3) == ["best", "lucky"]
    assert to_launch_again(rounds, most_rounds=2) == []


def test_a_round_of_few_is_no_whole_one() -> None:
    assert whole_rounds({"a": {1: 1.0, 2: 1.0, 3: 1.0}, "b": {1: 1.0, 3: 1.0}, "c": {1: 1.0}}) == [1, 3]


def test_noise_is_the_spread_of_a_candidate_over_rounds() -> None:
    assert noise_pct(_rounds(a=(1.0, 1.0, 1.0))) == 0.0
    assert noise_pct(_rounds(a=(1.0, 1.1), b=(1.0, 1.1))) == pytest.approx(6.74, abs=0.01)


def test_truth_and_launches_come_from_different_rounds() -> None:
    grid = load_grid(RECORDED, seed=1)
    rounds = at_one_pace(rounds_of(read_rows(RECORDED)[1]))
    assert len(grid.prospects) == len(grid.rates) == 16
    for prospect in grid.prospects:
        name = prospect.candidate.candidate_id
        drawn = {grid.draw(name, random.Random(seed)) for seed in range(50)}
        hidden = set(rounds[name].values()) - drawn
        assert len(drawn) == len(hidden) == 2
        geometric = (hidden.pop() * hidden.pop()) ** 0.5
        assert grid.rates[name] == pytest.approx(prospect.global_batch_size / geometric)


def test_the_halves_follow_from_the_seed() -> None:
    assert load_grid(RECORDED, seed=1).rates == load_grid(RECORDED, seed=1).rates
    assert len({max(load_grid(RECORDED, seed=seed).rates.values()) for seed in range(6)}) > 1


@pytest.mark.parametrize("method", ["guided", "random", "stage_walk"])
def test_each_method_searches_a_recorded_grid(method: str) -> None:
    grid = load_grid(RECORDED, seed=0)
    played = play(method, grid, seed=0, trials=6)
    names = [name for name, _ in played.launches]
    assert played.chosen in names and len(names) == len(set(names))
    assert method == "stage_walk" or len(names) <= 6
    assert 0 <= grid.regret(played.chosen) < 1


def test_the_first_trials_are_those_of_a_guided_search() -> None:
    grid = load_grid(RECORDED, seed=0)
    observed = first_trials(grid, seed=0, count=4)
    launched = [name for name, _ in play("guided", grid, seed=0, trials=4).launches]
    assert [grid.prospects[index].candidate.candidate_id for index in observed] == launched


def test_a_round_of_a_slow_hour_counts_like_the_others() -> None:
    rounds = {"fast": {1: 1.0, 2: 1.5, 3: 1.5}, "next": {1: 1.1, 2: 1.65, 3: 1.65}, "far": {1: 1.2, 2: 1.8}}
    levelled = at_one_pace(rounds)
    assert all(time_s == pytest.approx(times[1]) for times in levelled.values() for time_s in times.values())
