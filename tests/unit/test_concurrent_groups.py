"""Worker groups that search at the same time: whose nodes are whose, and who measures what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_candidate, make_request
from fakes import FakeLauncher
from ray.train import WorkerGroupError

from raysweep.errors import ConfigError
from raysweep.launch import warm_group
from raysweep.launch.broker_state import BrokerState
from raysweep.launch.cluster import share_nodes
from raysweep.launch.concurrent_groups import ConcurrentGroups
from raysweep.launch.warm_group import GroupSpec, TrainHost
from raysweep.search.searcher import OrderedSearcher
from raysweep.search.tuner import OneGroupEach


@pytest.mark.parametrize(
    ("slots", "groups", "placement", "shared"),
    [
        ({"a": 4, "b": 4}, 2, "PACK", (("a",), ("b",))),
        ({"a": 4, "b": 2, "c": 2}, 2, "PACK", (("a",), ("b", "c"))),
        # The largest node alone would leave two that are too small for a group.
        ({"a": 3, "b": 3, "c": 1, "d": 1}, 2, "PACK", (("b", "c"), ("a", "d"))),
        ({"head": 0, "a": 8, "b": 8, "c": 8, "d": 8}, 2, "SPREAD", (("a", "c"), ("b", "d"))),
        (dict.fromkeys("abcdefgh", 1), 2, "STRICT_SPREAD", (("a", "f", "g", "h"), ("b", "c", "d", "e"))),
    ],
)
def test_no_two_groups_share_a_node(
    slots: Mapping[str, int], groups: int, placement: str, shared: tuple[tuple[str, ...], ...]
) -> None:
    made = share_nodes(slots, groups=groups, world_size=4, placement=placement)
    used = [node for group in made for node in group]
    assert len(used) == len(set(used)) and len(made) == groups
    assert set(made) == set(shared)
    assert all(sum(slots[node] for node in group) >= 4 for group in made)


def test_too_few_nodes_are_refused_with_the_most_groups_that_there_can_be() -> None:
    with pytest.raises(
        ConfigError, match=r"workers\.concurrent_groups.*n1: 4, n2: 4, n3: 2.*nearest valid: 2"
    ) as caught:
        share_nodes({"n1": 4, "n2": 4, "n3": 2}, groups=3, world_size=4, placement="PACK")
    assert caught.value.data["nearest"] == 2


def test_slots_on_one_node_make_no_second_group() -> None:
    with pytest.raises(ConfigError):
        share_nodes({"n1": 8}, groups=2, world_size=4, placement="PACK")


def test_each_trial_has_a_group_for_itself_until_it_is_over() -> None:
    candidates = [make_candidate(micro_batch_size_per_gpu=size) for size in (1, 2, 4, 8)]
    requests = {each.candidate_id: make_request(candidate=each) for each in candidates}
    searcher = OneGroupEach(OrderedSearcher(candidates), requests, groups=2)

    def group_of(trial: str) -> Any:
        suggestion = searcher.suggest(trial)
        assert isinstance(suggestion, dict)
        return suggestion["group"]

    assert [group_of("t1"), group_of("t2")] == [0, 1]
    searcher.on_trial_complete("t2")
    assert group_of("t3") == 1
    searcher.on_trial_complete("t1")
    searcher.on_trial_complete("t3")
    assert group_of("t4") == 0


def test_what_all_groups_say_is_told_together() -> None:
    first, second = FakeLauncher(), FakeLauncher()
    groups = ConcurrentGroups([first, second])
    second.pending = "waiting for workers: 0 of 2"
    assert groups.waits_for() == "group 2: waiting for workers: 0 of 2"
    groups.recycle("confirmation")
    groups.close("sweep ended")
    assert first.recycled == ["confirmation", "sweep ended"] and second.recycled == ["sweep ended"]
    assert len(groups.group_ends()) == 3


def test_a_group_on_nodes_of_its_own_is_placed_anew_after_a_death_and_has_the_size_of_its_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = BrokerState(world_size=2, start_timeout_s=60.0)
    spec = GroupSpec(
        sweep_id="s",
        world_size=2,
        resources_per_worker={"CPU": 1},
        placement="PACK",
        device="cpu",
        log_folder="",
        nodes=("n1",),
    )
    started, ended = [], []

    def dies() -> None:
        raise WorkerGroupError("rank 0 died", {0: RuntimeError()})

    def gives_way() -> None:
        state.submit({"workload": {"world_size": 1}}, deadline_s=30.0, group_key="w1")

    runs: list[Callable[[], None]] = [dies, gives_way, dies, lambda: state.close("sweep ended")]

    def trainer(of: GroupSpec, storage: str, *, workers: int) -> Any:
        started.append(workers)
        return SimpleNamespace(fit=runs[len(started) - 1])

    monkeypatch.setattr(warm_group, "_trainer", trainer)
    monkeypatch.setattr(warm_group, "set_train_variables", lambda **variables: None)
    monkeypatch.setattr(warm_group, "find_broker", lambda sweep_id: state)
    monkeypatch.setattr(warm_group, "call", lambda broker, method: getattr(broker, method)())
    monkeypatch.setattr(warm_group, "find_reapers", lambda sweep_id: [])
    monkeypatch.setattr(warm_group, "ask_each", lambda reapers, order: ended.append(order))
    TrainHost().run(spec)
    assert started == [2, 2, 1, 1]
    assert ended == ["end_workers"]  # when the first size gave way to the second
