"""The guided searcher: what it proposes, when and why it stops, what it excludes, that it can be saved."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_candidate, make_workload, write_sweep
from ray.tune.search import Searcher
from replay import launch, make, play
from results_builders import failed
from search_simulation import scenario

from raysweep.plan import make_plan
from raysweep.probe import Probe
from raysweep.search.guided import SEEDS, GuidedSearcher
from raysweep.search.prospect import Prospect, fit_probability
from raysweep.search.searchers import make_searcher, prospects
from raysweep.serde import to_dict
from raysweep.step_work import step_work
from raysweep.sweep_file import load_sweep
from raysweep.trial import TrialStatus
from raysweep.zero_settings import ZeroSettings

GRID = scenario(0)
BY_ID = {prospect.candidate.candidate_id: prospect for prospect in GRID.prospects}


def _step(searcher: GuidedSearcher, rng: random.Random) -> str | None:
    """One proposal, answered; None at the end."""
    suggestion = searcher.suggest("trial")
    if not isinstance(suggestion, dict):
        assert suggestion == Searcher.FINISHED
        return None
    measurement = launch(BY_ID[suggestion["candidate_id"]], GRID, rng)
    searcher.on_trial_complete("trial", {"measurements": [to_dict(measurement)]})
    return measurement.candidate_id


def _searcher(**options: int) -> GuidedSearcher:
    searcher = make("guided", GRID, seed=0, trials=options.pop("trials", None))
    assert isinstance(searcher, GuidedSearcher)
    return searcher


def test_it_never_proposes_twice_and_ends_with_a_bound_and_the_next_candidate() -> None:
    searcher, rng = _searcher(), random.Random(0)
    proposed = []
    while candidate_id := _step(searcher, rng):
        proposed.append(candidate_id)
    assert SEEDS <= len(proposed) == len(set(proposed)) < len(GRID.prospects)
    assert "nothing left can beat" in searcher.stopped and "samples/s, at most" in searcher.stopped
    named = searcher.stopped.partition("next was ")[2].partition(",")[0]
    assert named in BY_ID and named not in proposed


def test_what_the_bound_ruled_out_has_a_reason_with_both_rates() -> None:
    searcher, rng = _searcher(), random.Random(0)
    while _step(searcher, rng):
        pass
    left = {candidate.candidate_id for candidate in searcher.left}
    bounded = searcher.bounded()
    assert bounded and set(bounded) <= left
    assert all("at most" in reason and "against" in reason for reason in bounded.values())
    assert not [name for name in bounded if GRID.rates.get(name, 0) > 1.1 * max(GRID.rates[i] for i in _launched(left))]


def _launched(left: set[str]) -> set[str]:
    return (set(BY_ID) - left) & set(GRID.rates)


def test_the_trials_end_it_and_only_the_bound_is_called_one() -> None:
    searcher, rng = _searcher(trials=SEEDS), random.Random(0)
    while _step(searcher, rng):
        pass
    assert searcher.stopped == "the budget of trials was spent"
    assert set(searcher.bounded()) < {candidate.candidate_id for candidate in searcher.left}


def test_before_the_seeds_are_measured_nothing_is_bounded() -> None:
    assert _searcher().bounded() == {}


def test_the_seeds_differ_in_what_they_tell() -> None:
    searcher, rng = _searcher(), random.Random(0)
    seeds = [BY_ID[str(_step(searcher, rng))].candidate for _ in range(SEEDS)]
    assert len({(each.zero_stage, each.activation_checkpoint_interval) for each in seeds}) >= 2
    assert len({each.micro_batch_size_per_gpu for each in seeds}) >= 2


@pytest.mark.parametrize("saved_at", [0, 2, 5])
def test_restored_it_goes_on_as_it_would_have(tmp_path: Path, saved_at: int) -> None:
    searcher = _searcher(trials=9)
    rng = random.Random(3)
    for _ in range(saved_at):
        _step(searcher, rng)
    searcher.save(str(tmp_path / "state"))
    state = rng.getstate()
    rest = [_step(searcher, rng) for _ in range(6)]
    restored = _searcher()
    restored.restore(str(tmp_path / "state"))
    rng.setstate(state)
    assert [_step(restored, rng) for _ in range(6)] == rest
    assert restored.stopped == searcher.stopped


def test_saved_at_trial_five_with_a_micro_benchmark_it_proposes_the_same_sixth(tmp_path: Path) -> None:
    probe = Probe(matmul_s=((256, 1e-3),), copy_s=((2**26, 2e-2),), all_reduce_s=((2**14, 1e-3), (2**22, 9e-2)))
    searcher, rng = _searcher(), random.Random(4)
    for number in range(5):
        suggestion = searcher.suggest("trial")
        assert isinstance(suggestion, dict)
        measurement = launch(BY_ID[suggestion["candidate_id"]], GRID, rng)
        shown = replace(measurement, probe=probe if number == 0 else None)
        searcher.on_trial_complete("trial", {"measurements": [to_dict(shown)]})
    searcher.save(str(tmp_path / "state"))
    restored = _searcher()
    restored.restore(str(tmp_path / "state"))
    assert restored._model.fit({}).coefficients == searcher._model.fit({}).coefficients
    assert restored.suggest("sixth") == searcher.suggest("sixth")


def test_resumed_from_records_it_goes_on_as_it_would_have() -> None:
    searcher, rng = _searcher(), random.Random(5)
    known = {}
    for _ in range(6):
        suggestion = searcher.suggest("trial")
        assert isinstance(suggestion, dict)
        measurement = launch(BY_ID[suggestion["candidate_id"]], GRID, rng)
        known[measurement.candidate_id] = measurement
        searcher.on_trial_complete("trial", {"measurements": [to_dict(measurement)]})
    left = [each.candidate for each in GRID.prospects if each.candidate.candidate_id not in known]
    resumed = GuidedSearcher(left, prospects=GRID.prospects, device=GRID.device, memory_budget_bytes=GRID.budget_bytes)
    for name, measurement in known.items():
        resumed.knows(BY_ID[name].candidate, measurement)
    assert resumed.suggest("next") == searcher.suggest("next")


def test_failures_alone_do_not_end_or_break_it() -> None:
    searcher = _searcher(trials=6)
    for number in range(6):
        suggestion = searcher.suggest(str(number))
        assert isinstance(suggestion, dict)
        end = failed(suggestion["candidate_id"], (TrialStatus.FAILED, TrialStatus.OOM)[number % 2])
        searcher.on_trial_complete(str(number), {"measurements": [to_dict(end)]})
    assert searcher.suggest("last") == Searcher.FINISHED


def test_noise_of_one_launch_does_not_keep_it_searching_for_ties() -> None:
    """All candidates are equally fast, up to 10 % of noise: it ends, and long before the grid does."""
    workload = make_workload()
    candidates = [make_candidate(micro_batch_size_per_gpu=b, zero_stage=s) for b in range(1, 17) for s in range(4)]
    alike = step_work(candidates[0], workload, ZeroSettings())
    equal = [Prospect(candidate=each, work=alike, global_batch_size=16) for each in candidates]
    by_id = {each.candidate.candidate_id: each for each in equal}
    searcher = GuidedSearcher(candidates, prospects=equal)
    rng = random.Random(1)
    count = 0
    while isinstance(suggestion := searcher.suggest("trial"), dict):
        rates = {name: 1.0 for name in by_id}
        grid = GRID.__class__(
            prospects=equal,
            pruned=[],
            draw=lambda name, rng: 0.1 * (1 + rng.gauss(0, 0.1)),
            peaks_bytes={name: 1 for name in by_id},
            budget_bytes=None,
            rates=rates,
        )
        measurement = launch(by_id[suggestion["candidate_id"]], grid, rng)
        searcher.on_trial_complete("trial", {"measurements": [to_dict(measurement)]})
        count += 1
    assert count < len(candidates) / 2, count


def test_measured_peaks_move_the_probability_to_fit() -> None:
    workload = make_workload()
    pair = [
        Prospect(
            candidate=each,
            work=step_work(each, workload, ZeroSettings()),
            global_batch_size=4,
            predicted_memory_bytes=predicted,
            memory_band=0.2,
        )
        for each, predicted in ((make_candidate(), 900), (make_candidate(zero_stage=3), 1000))
    ]
    before = fit_probability(pair, peaks_bytes={}, budget_bytes=1000)
    assert before[0] > 0.8 and before[1] == pytest.approx(0.5)
    higher = fit_probability(pair, peaks_bytes={0: 1000}, budget_bytes=1000)
    assert higher[1] < 0.35
    assert fit_probability(pair, peaks_bytes={}, budget_bytes=None).tolist() == [1.0, 1.0]


def test_a_sweep_names_it_and_twelve_trials_are_its_most(tmp_path: Path) -> None:
    space = {"space.micro_batch_size_per_gpu": [1, 2, 4, 8, 16, 32], "global_batch_size": 64}
    sweep = load_sweep(write_sweep(tmp_path, **space, **{"search": {"method": "guided"}}))
    plan = make_plan(sweep)
    searcher = make_searcher(sweep, plan, {})
    assert isinstance(searcher, GuidedSearcher)
    assert searcher.most_launches == plan.cost.trials == 12 < len(plan.admitted)
    found = prospects(sweep, plan)
    assert [each.candidate for each in found] == plan.admitted
    assert {each.global_batch_size for each in found} == {64}
    assert all(each.predicted_memory_bytes and each.memory_band for each in found)


def test_it_finds_the_best_of_scenarios_that_its_model_does_not_describe() -> None:
    regrets = {
        method: [grid.regret(play(method, grid, seed=seed, trials=12).chosen) for seed, grid in enumerate(GRIDS)]
        for method in ("guided", "random")
    }
    assert sum(regret <= 0.02 for regret in regrets["guided"]) >= 0.7 * len(GRIDS), regrets
    assert sum(regrets["guided"]) < sum(regrets["random"]) / 3


GRIDS = [scenario(seed) for seed in range(12)]
