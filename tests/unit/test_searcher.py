"""The searchers: the order and its end, what an out-of-memory proves of others, and Optuna's proposals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, write_sweep
from ray.tune.search import Searcher
from results_builders import completed, failed

from raysweep.candidate import Candidate
from raysweep.errors import ConfigError
from raysweep.plan import make_plan
from raysweep.search.optuna_searcher import OptunaSearcher
from raysweep.search.searcher import CandidateSearcher, OrderedSearcher
from raysweep.search.searchers import make_searcher
from raysweep.serde import to_dict
from raysweep.sweep_file import load_sweep
from raysweep.trial import Measurement, TrialStatus

THREE = [make_candidate(zero_stage=stage) for stage in (2, 3, 1)]
SPACE = [
    make_candidate(zero_stage=stage, activation_checkpoint_interval=interval, micro_batch_size_per_gpu=micro)
    for stage in range(4)
    for interval in (0, 1, 2)
    for micro in (1, 2, 4, 8)
]

BEST = make_candidate(zero_stage=1, activation_checkpoint_interval=0, micro_batch_size_per_gpu=8)


def _ask(searcher: CandidateSearcher, name: str = "trial") -> str:
    suggestion = searcher.suggest(name)
    return suggestion["candidate_id"] if isinstance(suggestion, dict) else suggestion


def _all_of(searcher: CandidateSearcher) -> list[str]:
    found = []
    while (candidate_id := _ask(searcher)) != Searcher.FINISHED:
        found.append(candidate_id)
    return found


def _end(searcher: CandidateSearcher, name: str, measurement: Measurement) -> None:
    searcher.on_trial_complete(name, {"measurements": [to_dict(measurement)]})


def test_it_proposes_in_the_order_given_and_then_says_why_it_ended() -> None:
    searcher = OrderedSearcher(THREE)
    assert searcher.stopped == "" and searcher.most_launches == 3
    assert _all_of(searcher) == [candidate.candidate_id for candidate in THREE]
    assert searcher.stopped == "every admitted candidate was launched"


def test_the_time_budget_ends_it_between_candidates() -> None:
    now = [100.0]
    searcher = OrderedSearcher(THREE, seconds=10, clock=lambda: now[0])
    _ask(searcher)
    now[0] = 109.9
    assert _ask(searcher) == THREE[1].candidate_id
    now[0] = 110.0
    assert _ask(searcher) == Searcher.FINISHED
    assert searcher.stopped == "the time budget was spent"


def test_trials_end_it_with_their_reason() -> None:
    searcher = OrderedSearcher(THREE, trials=2, trials_spent="two were spent")
    assert searcher.most_launches == 2
    assert len(_all_of(searcher)) == 2
    assert searcher.stopped == "two were spent"


def test_the_first_reason_to_stop_stands() -> None:
    searcher = OrderedSearcher(THREE)
    searcher.stop("no worker group can start")
    assert _all_of(searcher) == []
    searcher.stop("another")
    assert searcher.stopped == "no worker group can start"


def test_it_maximises_samples_per_s() -> None:
    searcher = OrderedSearcher([])
    assert (searcher.metric, searcher.mode) == ("samples_per_s", "max")


def test_a_larger_micro_batch_is_not_tried_after_an_out_of_memory() -> None:
    small, large, other = (
        make_candidate(micro_batch_size_per_gpu=2),
        make_candidate(micro_batch_size_per_gpu=4),
        make_candidate(micro_batch_size_per_gpu=4, activation_checkpoint_interval=1),
    )
    searcher = OrderedSearcher([small, large, other])
    _ask(searcher, "first")
    _end(searcher, "first", failed(small.candidate_id, TrialStatus.OOM))
    assert _all_of(searcher) == [other.candidate_id]


@pytest.mark.parametrize("seed", range(5))
def test_optuna_never_proposes_twice_nor_what_is_proved_not_to_fit(seed: int) -> None:
    searcher = OptunaSearcher(SPACE, seed=seed, memory_budget_bytes=100)
    by_id = {candidate.candidate_id: candidate for candidate in SPACE}
    too_large: list[Candidate] = []
    proposed = []
    while (candidate_id := _ask(searcher)) != Searcher.FINISHED:
        candidate = by_id[candidate_id]
        assert not [each for each in too_large if _same_but_larger(candidate, each)]
        proposed.append(candidate_id)
        if _peak(candidate) > 100:
            too_large.append(candidate)
            _end(searcher, "trial", failed(candidate_id, TrialStatus.OOM, peak_memory_bytes=_peak(candidate)))
        else:
            _end(searcher, "trial", completed(candidate_id, 10.0, peak_memory_bytes=_peak(candidate)))
    assert len(proposed) == len(set(proposed)) < len(SPACE)
    assert all(candidate_id in proposed for candidate_id in by_id if _peak(by_id[candidate_id]) <= 100)


def test_optuna_finds_the_best_sooner_than_chance() -> None:
    found = []
    for seed in range(10):
        searcher = OptunaSearcher(SPACE, seed=seed, memory_budget_bytes=100)
        by_id = {candidate.candidate_id: candidate for candidate in SPACE}
        proposed = []
        while BEST.candidate_id not in proposed:
            candidate = by_id[_ask(searcher)]
            proposed.append(candidate.candidate_id)
            rate = 50.0 + 10.0 * candidate.micro_batch_size_per_gpu - 5.0 * candidate.activation_checkpoint_interval
            rate -= 10.0 * abs(candidate.zero_stage - 1)
            _end(searcher, "trial", completed(candidate.candidate_id, rate, peak_memory_bytes=50))
        found.append(len(proposed))
    assert sum(found) / len(found) < len(SPACE) / 3, found


def _peak(candidate: Candidate) -> int:
    return 30 * candidate.micro_batch_size_per_gpu - 10 * candidate.zero_stage + 20 * (candidate.zero_stage == 0)


def _same_but_larger(candidate: Candidate, other: Candidate) -> bool:
    def rest(each: Candidate) -> Any:
        return each.zero_stage, each.activation_checkpoint_interval

    return rest(candidate) == rest(other) and (candidate.micro_batch_size_per_gpu > other.micro_batch_size_per_gpu)


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load_sweep(write_sweep(tmp_path, **{"search.method": "optuna"}))
    monkeypatch.setitem(sys.modules, "raysweep.search.optuna_searcher", None)
    with pytest.raises(ConfigError, match="needs the extra optuna"):
        make_searcher(sweep, make_plan(sweep), {})
