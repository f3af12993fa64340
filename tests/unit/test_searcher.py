"""The searcher behind grid and random search."""

from __future__ import annotations

from ray.tune.search import Searcher

from raysweep.search.searcher import OrderedSearcher


def _all_of(searcher: OrderedSearcher) -> list[str]:
    found = []
    while isinstance(suggestion := searcher.suggest("trial"), dict):
        found.append(suggestion["candidate_id"])
    assert suggestion == Searcher.FINISHED
    return found


def test_it_proposes_in_the_order_given_and_then_says_why_it_ended() -> None:
    searcher = OrderedSearcher(["b", "c", "a"])
    assert searcher.stopped == ""
    assert _all_of(searcher) == ["b", "c", "a"]
    assert searcher.stopped == "every admitted candidate was launched"


def test_the_time_budget_ends_it_between_candidates() -> None:
    now = [100.0]
    searcher = OrderedSearcher(["a", "b", "c"], seconds=10, clock=lambda: now[0])
    assert searcher.suggest("1") == {"candidate_id": "a"}
    now[0] = 109.9
    assert searcher.suggest("2") == {"candidate_id": "b"}
    now[0] = 110.0
    assert searcher.suggest("3") == Searcher.FINISHED
    assert searcher.stopped == "the time budget was spent"


def test_the_first_reason_to_stop_stands() -> None:
    searcher = OrderedSearcher(["a"])
    searcher.stop("no worker group can start")
    assert _all_of(searcher) == []
    searcher.stop("another")
    assert searcher.stopped == "no worker group can start"


def test_it_maximises_samples_per_s() -> None:
    searcher = OrderedSearcher([])
    assert (searcher.metric, searcher.mode) == ("samples_per_s", "max")
