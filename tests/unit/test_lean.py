"""Guided search for the least memory that is fast enough."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from builders import write_sweep
from ray.tune.search import Searcher
from replay import Grid, launch
from search_simulation import scenario

from raysweep.plan import make_plan
from raysweep.search.lean import LeanSearcher
from raysweep.search.searchers import make_searcher
from raysweep.serde import to_dict
from raysweep.sweep_file import load_sweep


def _searched(grid: Grid, least_rate: float, *, trials: int, seed: int = 0) -> tuple[LeanSearcher, Mapping[str, float]]:
    """The searcher at its end, and the rates of what it launched."""
    by_id = {each.candidate.candidate_id: each for each in grid.prospects}
    searcher = LeanSearcher(
        [each.candidate for each in grid.prospects],
        prospects=grid.prospects,
        device=grid.device,
        memory_budget_bytes=grid.budget_bytes,
        trials=trials,
        least_rate=least_rate,
    )
    rng, launched = random.Random(seed), {}
    while isinstance(suggestion := searcher.suggest("trial"), dict):
        measurement = launch(by_id[suggestion["candidate_id"]], grid, rng)
        searcher.on_trial_complete("trial", {"measurements": [to_dict(measurement)]})
        launched[measurement.candidate_id] = measurement.figures.samples_per_s if measurement.figures else 0.0
    assert searcher.suggest("trial") == Searcher.FINISHED
    return searcher, launched


def _leanest_bytes(grid: Grid, names: Mapping[str, float], least_rate: float) -> float:
    return min((grid.peaks_bytes[name] for name, rate in names.items() if rate >= least_rate), default=float("inf"))


def test_a_dozen_trials_find_nearly_the_leanest_of_most_scenarios() -> None:
    near = 0
    for seed in range(6):
        grid = scenario(seed)
        least_rate = 0.8 * max(grid.rates.values())
        _, launched = _searched(grid, least_rate, trials=12, seed=seed)
        assert len(launched) <= 12
        near += _leanest_bytes(grid, launched, least_rate) <= 1.1 * _leanest_bytes(grid, grid.rates, least_rate)
    assert near >= 5


def test_it_says_why_it_ended_and_what_was_too_slow() -> None:
    grid = scenario(1)
    searcher, _ = _searched(grid, 0.8 * max(grid.rates.values()), trials=len(grid.prospects))
    assert "less memory than" in searcher.stopped
    bounded = searcher.bounded()
    assert bounded and all("that the objective asks for" in reason for reason in bounded.values())


def test_candidates_race_against_the_rate_that_suffices() -> None:
    searcher, _ = _searched(scenario(0), 7.0, trials=1)
    best = searcher.to_beat()
    assert best is not None and best.samples_per_s == 7.0 and best.launch_log_sd > 0


def test_a_rate_that_nobody_reaches_ends_with_the_trials() -> None:
    grid = scenario(0)
    searcher, launched = _searched(grid, 100 * max(grid.rates.values()), trials=7)
    assert len(launched) == 7 and searcher.stopped == "the budget of trials was spent"


def test_a_sweep_for_the_least_memory_searches_so(tmp_path: Path) -> None:
    objective = {"goal": "peak_memory", "at_least_samples_per_s": 10}
    sweep = load_sweep(write_sweep(tmp_path, objective=objective, **{"search.method": "guided"}))
    assert isinstance(make_searcher(sweep, make_plan(sweep), {}), LeanSearcher)
