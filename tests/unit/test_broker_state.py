"""The broker's knowledge: who is up, who works on what, and how groups and candidates end."""

from __future__ import annotations

from typing import Any

import pytest

from raysweep.launch.broker_state import (
    CAUSE_WAIT_S,
    COLLATERAL_WAIT_S,
    LOST_WAIT_S,
    REAPER_GRACE_S,
    BrokerState,
)
from raysweep.outcome import DEADLINE_PASSED, PROCESS_DIED
from raysweep.serde import to_dict
from raysweep.trial import RankFailure

DIED = ("ray.exceptions.ActorDiedError", "ray.exceptions.RayActorError", "ray.exceptions.RayError")
REQUEST = {"candidate": "any"}


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Stage:
    """A broker's state of two ranks, and the verbs of those that talk to it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sequence = 0
        self.state = BrokerState(world_size=2, start_timeout_s=60.0, clock=self.clock)

    def starts(self, generation: str = "g1", ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks:
            facts = {"pid": 100 + rank, "node": f"n{rank}", "node_id": f"id{rank}", "log_path": f"log{rank}"}
            self.state.register(generation, rank, facts)

    def submits(self, key: Any = (), deadline_s: float = 30.0) -> int:
        self.sequence = self.state.submit(REQUEST, deadline_s=deadline_s, group_key=key)
        return self.sequence

    def hands_out(self, generation: str = "g1") -> None:
        """Both ranks ask, and then both have it."""
        self.state.ask(generation, 0)
        assert (self.state.ask(generation, 1) or {})["do"] == "measure"
        assert (self.state.ask(generation, 0) or {})["do"] == "measure"

    def works_on(self, generation: str = "g1", **submitted: Any) -> int:
        self.starts(generation)
        sequence = self.submits(**submitted)
        self.hands_out(generation)
        return sequence

    def delivers(self, sequence: int, generation: str = "g1", ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks:
            self.state.deliver(generation, rank, sequence, {"rank": rank})

    def result(self) -> dict[str, Any]:
        result = self.state.result(self.sequence)
        assert result is not None
        return result


@pytest.fixture
def stage() -> Stage:
    return Stage()


def _failure(rank: int, *type_names: str, **values: Any) -> dict[str, Any]:
    return to_dict(RankFailure(rank=rank, type_names=type_names or ("builtins.ValueError",), **values))


def test_a_candidate_is_handed_out_only_when_every_rank_has_asked(stage: Stage) -> None:
    stage.starts()
    sequence = stage.submits()
    assert stage.state.ask("g1", 0) is None
    assert stage.state.ask("g1", 0) is None
    assert stage.state.ask("g1", 1) == {"do": "measure", "sequence": sequence, "request": REQUEST}
    assert stage.state.ask("g1", 0) == {"do": "measure", "sequence": sequence, "request": REQUEST}


def test_a_rank_gets_a_candidate_once(stage: Stage) -> None:
    stage.works_on()
    assert stage.state.ask("g1", 0) is None


def test_ranks_wait_while_there_is_no_work(stage: Stage) -> None:
    stage.starts()
    assert (stage.state.ask("g1", 0), stage.state.ask("g1", 1)) == (None, None)


def test_the_reports_of_all_ranks_are_the_result(stage: Stage) -> None:
    sequence = stage.works_on()
    stage.delivers(sequence, ranks=(1,))
    assert stage.state.result(stage.sequence) is None
    stage.delivers(sequence, ranks=(0,))
    result = stage.result()
    assert result["reports"] == [{"rank": 0}, {"rank": 1}] and result["failures"] == []
    assert (result["group_id"], result["position_in_group"]) == ("g1", 1)
    assert [facts["pid"] for facts in result["ranks"]] == [100, 101]


def test_a_group_keeps_its_candidates_apart_and_counts_them(stage: Stage) -> None:
    first = stage.works_on()
    stage.delivers(first)
    second = stage.submits()
    stage.hands_out()
    stage.delivers(first)
    assert second == first + 1 and stage.state.result(stage.sequence) is None
    stage.delivers(second)
    assert stage.result()["position_in_group"] == 2
    assert stage.state.ended_groups == []


def test_a_candidate_that_nobody_waits_for_any_more_ends_with_its_group(stage: Stage) -> None:
    abandoned = stage.works_on()
    again = stage.submits()
    assert again == abandoned + 1
    assert stage.state.ended_groups[0].reason == "the trial that waited for its candidate is gone"
    stage.delivers(abandoned)
    assert stage.state.result(again) is None
    assert stage.state.overdue_pids("id1") == []
    stage.clock.now_s += REAPER_GRACE_S + 1
    assert stage.state.overdue_pids("id1") == [101], "a rank that is still at work is ended by the reaper"


def test_a_failure_of_one_rank_waits_for_the_others_and_then_ends_the_group(stage: Stage) -> None:
    sequence = stage.works_on()
    stage.state.fail("g1", 1, sequence, _failure(1, message="mine"))
    stage.clock.now_s += COLLATERAL_WAIT_S
    assert stage.state.result(stage.sequence) is None
    stage.clock.now_s += 1
    assert [failure["message"] for failure in stage.result()["failures"]] == ["mine"]
    assert stage.state.ended_groups[0].reason == "rank 1 failed: ValueError"


def test_errors_of_ranks_whose_peer_is_gone_wait_for_word_of_the_peer(stage: Stage) -> None:
    sequence = stage.works_on()
    gone = _failure(0, "builtins.RuntimeError", message="Connection closed by peer [10.0.0.1]:4242")
    stage.state.fail("g1", 0, sequence, gone)
    stage.clock.now_s += COLLATERAL_WAIT_S + 1
    assert stage.state.result(sequence) is None and stage.state.may_hear_more({})
    stage.state.died({1: _failure(1, *DIED)})
    assert [failure["rank"] for failure in stage.result()["failures"]] == [0, 1]


def test_it_does_not_wait_for_ever_for_word_of_the_peer(stage: Stage) -> None:
    sequence = stage.works_on()
    gone = _failure(0, "builtins.RuntimeError", message="Connection closed by peer [10.0.0.1]:4242")
    stage.state.fail("g1", 0, sequence, gone)
    stage.clock.now_s += CAUSE_WAIT_S + 1
    assert [failure["rank"] for failure in stage.result()["failures"]] == [0]


def test_a_rank_that_has_not_failed_may_yet_say_why(stage: Stage) -> None:
    assert not stage.state.may_hear_more({})
    sequence = stage.works_on()
    assert stage.state.may_hear_more({1: _failure(1)})
    stage.state.fail("g1", 0, sequence, _failure(0))
    assert not stage.state.may_hear_more({1: _failure(1)})


def test_a_broker_that_was_started_again_knows_nothing_and_says_so(stage: Stage) -> None:
    assert stage.state.result(7) is None, "it waits for word of the ranks"
    stage.clock.now_s += LOST_WAIT_S
    (failure,) = stage.state.result(7)["failures"]
    assert failure["type_names"] == [PROCESS_DIED] and failure["message"] == "the broker died"
    assert (stage.state.ask("g0", 0) or {})["do"] == "leave"
    for _ in range(9):
        stage.state.died({0: _failure(0, "raysweep.launch.worker_loop.GroupLeaves")})
    assert stage.state.cannot_start == ""
    (failure,) = stage.state.result(7)["failures"]
    assert failure["message"] == "the broker died", "a rank that left when it was told to is not the cause"


def test_the_wait_for_a_group_is_told_apart_from_the_work(stage: Stage) -> None:
    sequence = stage.submits()
    stage.clock.now_s += 12
    stage.starts()
    stage.hands_out()
    stage.clock.now_s += 3
    stage.delivers(sequence)
    assert stage.result()["waited_s"] == 12


def test_what_killed_the_broker_may_have_killed_ranks_and_that_is_the_cause(stage: Stage) -> None:
    assert stage.state.result(7) is None
    stage.state.died({1: _failure(1, "ray.exceptions.OutOfMemoryError", "ray.exceptions.RayError")})
    (failure,) = stage.state.result(7)["failures"]
    assert (failure["rank"], failure["type_names"][0]) == (1, "ray.exceptions.OutOfMemoryError")


def test_what_a_candidate_waits_for_is_said_until_it_is_handed_out(stage: Stage) -> None:
    assert stage.state.waits_for() == ""
    stage.submits()
    stage.starts(ranks=(0,))
    stage.clock.now_s += 31
    assert stage.state.waits_for() == "waiting for workers: 1 of 2 are up after 31 s (given up after 60 s)"
    stage.starts(ranks=(1,))
    stage.hands_out()
    assert stage.state.waits_for() == ""


def test_a_report_beside_a_failure_does_not_count(stage: Stage) -> None:
    sequence = stage.works_on()
    stage.delivers(sequence, ranks=(0,))
    stage.state.fail("g1", 1, sequence, _failure(1))
    stage.state.end_group("over")
    assert stage.result()["reports"] == []


def test_a_failure_that_all_ranks_share_costs_no_group(stage: Stage) -> None:
    sequence = stage.works_on()
    for rank in (0, 1):
        stage.state.fail("g1", rank, sequence, _failure(rank, data={"collective": True, "peak_bytes": 9}))
    assert len(stage.result()["failures"]) == 2
    assert stage.state.group is not None and stage.state.ended_groups == []
    stage.submits()
    stage.hands_out()


def test_a_dead_process_is_placed_and_ends_the_group(stage: Stage) -> None:
    stage.works_on()
    stage.state.died({1: _failure(1, *DIED, message="killed")})
    (failure,) = stage.result()["failures"]
    assert failure["type_names"][0] == PROCESS_DIED
    assert (failure["node"], failure["log_path"], failure["message"]) == ("n1", "log1", "killed")
    (end,) = stage.state.ended_groups
    assert (end.group_id, end.reason) == ("g1", "rank 1 died: ActorDiedError")
    assert (end.worker_pids, end.nodes) == ((100, 101), ("n0", "n1"))


def test_a_rank_s_own_words_outlive_ray_s_report_of_it(stage: Stage) -> None:
    sequence = stage.works_on()
    stage.state.fail("g1", 1, sequence, _failure(1, message="mine"))
    stage.state.died({0: _failure(0, *DIED), 1: _failure(1, *DIED)})
    assert [failure["type_names"][0] for failure in stage.result()["failures"]] == [PROCESS_DIED, "builtins.ValueError"]


def test_a_process_that_ended_at_its_deadline_was_hung(stage: Stage) -> None:
    stage.works_on(deadline_s=30.0)
    stage.clock.now_s += 30.5
    stage.state.died({0: _failure(0, *DIED)})
    (failure,) = stage.result()["failures"]
    assert failure["type_names"][0] == DEADLINE_PASSED
    assert failure["message"] == "still busy at its deadline of 30 s; its stacks are in its log"


def test_the_reaper_is_told_of_processes_past_deadline_and_grace(stage: Stage) -> None:
    sequence = stage.works_on(deadline_s=30.0)
    stage.clock.now_s += 30 + REAPER_GRACE_S - 1
    assert stage.state.overdue_pids("id0") == []
    stage.clock.now_s += 1
    assert (stage.state.overdue_pids("id0"), stage.state.overdue_pids("id1")) == ([100], [101])
    stage.delivers(sequence, ranks=(0,))
    assert stage.state.overdue_pids("id0") == []
    stage.delivers(sequence, ranks=(1,))
    assert stage.state.overdue_pids("id1") == []


def test_nothing_is_overdue_before_it_was_handed_out(stage: Stage) -> None:
    stage.starts()
    stage.submits()
    stage.clock.now_s += 1000
    assert stage.state.overdue_pids("id0") == []


def test_a_new_generation_tells_that_the_former_is_gone(stage: Stage) -> None:
    stage.works_on()
    stage.starts("g2", ranks=(0,))
    assert stage.result()["failures"][0]["message"] == "replaced by a new group"
    assert [end.group_id for end in stage.state.ended_groups] == ["g1"]
    assert stage.state.ask("g1", 1) == {"do": "leave", "final": False, "reason": "the group was ended"}


def test_an_ended_generation_stays_ended(stage: Stage) -> None:
    sequence = stage.works_on()
    stage.state.end_group("recycled")
    stage.starts("g1")
    assert stage.state.group is None
    stage.delivers(sequence)
    assert stage.result()["reports"] == []


def test_words_of_a_former_generation_do_not_count(stage: Stage) -> None:
    stage.works_on()
    stage.state.end_group("recycled")
    stage.starts("g2")
    sequence = stage.submits()
    stage.hands_out("g2")
    stage.delivers(sequence, generation="g1")
    stage.state.fail("g1", 0, sequence, _failure(0))
    assert stage.state.result(stage.sequence) is None


def test_a_recycled_group_takes_no_waiting_candidate_along(stage: Stage) -> None:
    stage.starts()
    sequence = stage.submits()
    stage.state.end_group("recycled")
    assert stage.state.result(stage.sequence) is None
    stage.starts("g2")
    stage.hands_out("g2")
    stage.delivers(sequence, generation="g2")
    assert (stage.result()["group_id"], stage.result()["position_in_group"]) == ("g2", 1)


def test_another_group_key_gets_a_fresh_group(stage: Stage) -> None:
    stage.delivers(stage.works_on(key=()))
    stage.submits(key=(("compile", "True"),))
    assert stage.state.ended_groups[0].reason == "the next candidate cannot share its process"


def test_a_group_that_ran_nothing_takes_any_key(stage: Stage) -> None:
    stage.starts()
    stage.submits(key=(("compile", "True"),))
    assert stage.state.ended_groups == []


def test_three_groups_that_die_before_they_are_up_are_enough(stage: Stage) -> None:
    stage.submits()
    for number in range(3):
        assert stage.state.result(stage.sequence) is None
        stage.starts(f"g{number}", ranks=(0,))
        stage.state.died({1: _failure(1, "builtins.ImportError", message="no module")})
    assert stage.result() == {"cannot_start": "rank 1: ImportError: no module"}


def test_a_group_that_comes_up_ends_the_count_of_start_failures(stage: Stage) -> None:
    for number in range(4):
        stage.starts(f"half{number}", ranks=(0,))
        stage.state.died({1: _failure(1, *DIED)})
        stage.starts(f"whole{number}")
        stage.state.died({1: _failure(1, *DIED)})
    assert (stage.state.start_failures, stage.state.cannot_start) == (0, "")


def test_the_death_of_a_group_that_was_ended_on_purpose_is_no_start_failure(stage: Stage) -> None:
    for number in range(4):
        stage.starts(f"g{number}")
        stage.state.end_group("recycled")
        stage.state.died({0: _failure(0, *DIED)})
    assert (stage.state.start_failures, stage.state.cannot_start) == (0, "")
    assert len(stage.state.ended_groups) == 4


def test_workers_that_do_not_come_up_in_time_are_counted(stage: Stage) -> None:
    stage.submits()
    stage.starts(ranks=(0,))
    stage.clock.now_s += 61
    assert stage.result()["cannot_start"].startswith("1 of 2 workers were up after 60 s")


def test_closing_sends_every_rank_away_for_good(stage: Stage) -> None:
    stage.starts()
    stage.state.close("sweep ended")
    assert stage.state.ask("g1", 0) == {"do": "leave", "final": True, "reason": "sweep ended"}
    assert [end.reason for end in stage.state.ended_groups] == ["sweep ended"]
