"""Groups of other sizes, as the broker knows them: who leaves for good, and what comes next."""

from __future__ import annotations

from typing import Any

from raysweep.launch.broker_state import BrokerState


def request_of(workers: int) -> dict[str, Any]:
    return {"workload": {"world_size": workers}}


def comes_up(state: BrokerState, generation: str, workers: int) -> None:
    for rank in range(workers):
        facts = {"pid": rank, "node": "n0", "node_id": "id0", "log_path": "", "world_size": workers}
        state.register(generation, rank, facts)


def works(state: BrokerState, generation: str, workers: int) -> None:
    """All ranks take the submitted candidate, and deliver it."""
    for rank in range(workers):
        state.ask(generation, rank)
    orders = [state.ask(generation, rank) for rank in range(workers - 1)]
    assert all((order or {}).get("do") == "measure" for order in orders)
    job = state.job
    assert job is not None
    for rank in range(workers):
        state.deliver(generation, rank, job.sequence, {"rank": rank})
    assert (state.result(job.sequence) or {})["reports"] == [{"rank": rank} for rank in range(workers)]


def test_a_group_of_another_size_leaves_for_good_and_the_next_run_has_the_new_size() -> None:
    state = BrokerState(world_size=2, start_timeout_s=60.0)
    comes_up(state, "g1", 2)
    state.submit(request_of(2), deadline_s=30.0, group_key=())
    works(state, "g1", 2)
    state.submit(request_of(1), deadline_s=30.0, group_key="w1")
    assert state.workers_wanted() == 1
    orders = [state.ask("g1", rank) or {} for rank in range(2)]
    assert [(order["do"], order["final"]) for order in orders] == [("leave", True)] * 2
    comes_up(state, "g2", 1)
    assert (state.ask("g2", 0) or {})["do"] == "measure"
    assert [end.group_id for end in state.ended_groups] == ["g1"]


def test_a_group_that_came_up_at_the_former_size_has_to_leave_too() -> None:
    state = BrokerState(world_size=2, start_timeout_s=60.0)
    state.submit(request_of(1), deadline_s=30.0, group_key="w1")
    comes_up(state, "too large", 2)
    assert (state.ask("too large", 0) or {})["final"] is True
    assert state.group is None and state.waits_for().startswith("waiting for workers: 0 of 1")
    comes_up(state, "right", 1)
    assert (state.ask("right", 0) or {})["do"] == "measure"


def test_an_unused_group_of_another_size_is_ended() -> None:
    state = BrokerState(world_size=2, start_timeout_s=60.0)
    comes_up(state, "g1", 2)
    state.submit(request_of(1), deadline_s=30.0, group_key="w1")
    assert state.ended_groups[0].reason == "the next candidate has 1 workers"


def test_a_group_of_the_same_size_is_restarted_by_ray_and_not_by_a_new_run() -> None:
    state = BrokerState(world_size=2, start_timeout_s=60.0)
    comes_up(state, "g1", 2)
    state.submit(request_of(2), deadline_s=30.0, group_key="a")
    works(state, "g1", 2)
    state.submit(request_of(2), deadline_s=30.0, group_key="b")
    assert (state.ask("g1", 0) or {})["final"] is False
    state.close("over")
    assert state.workers_wanted() is None and (state.ask("g1", 0) or {})["final"] is True


def test_no_run_begins_once_no_group_can_start() -> None:
    state = BrokerState(world_size=2, start_timeout_s=60.0)
    state.cannot_start = "no room"
    assert state.workers_wanted() is None
