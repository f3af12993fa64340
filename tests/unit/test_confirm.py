"""Finalists are measured in fresh groups, in rotated order."""

from __future__ import annotations

from builders import make_candidate, make_request
from fakes import FakeLauncher

from raysweep.search.confirm import confirm, rotated
from raysweep.trial import LaunchRequest, Measurement, Phase, TrialStatus


def _finalists(*micro_batches: int) -> list[LaunchRequest]:
    return [make_request(candidate=make_candidate(micro_batch_size_per_gpu=each)) for each in micro_batches]


def _batches(launcher: FakeLauncher) -> list[int]:
    return [request.candidate.micro_batch_size_per_gpu for request in launcher.launched]


def test_orders_rotate() -> None:
    assert ["".join(rotated("ABC", number)) for number in (1, 2, 3, 4)] == ["ABC", "BCA", "CAB", "ABC"]
    assert ["".join(rotated("AB", number)) for number in (1, 2, 3)] == ["AB", "BA", "AB"]


def test_three_fresh_groups_measure_all_finalists_once_each() -> None:
    launcher = FakeLauncher()
    measured = confirm(launcher, _finalists(1, 2, 4), on_launching=lambda *_: None, on_measured=lambda _: None)
    assert _batches(launcher) == [1, 2, 4, 2, 4, 1, 4, 1, 2]
    assert [m.round for m in measured] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {m.phase for m in measured} == {Phase.CONFIRM}
    assert [m.position_in_group for m in measured] == [1, 2, 3] * 3 and len(launcher.recycled) == 3


def test_a_finalist_is_measured_for_longer_than_in_the_search() -> None:
    launcher = FakeLauncher()
    finalists = _finalists(1, 2)
    confirm(launcher, finalists, on_launching=lambda *_: None, on_measured=lambda _: None)
    assert {each.window.measured_steps for each in launcher.launched} == {2 * finalists[0].window.measured_steps}
    assert {each.deadline_s for each in launcher.launched} == {2 * finalists[0].deadline_s}


def test_a_finalist_whose_group_was_lost_gets_its_round_again() -> None:
    launcher = FakeLauncher().loses_a_rank_at(2)
    measured = confirm(launcher, _finalists(1, 2), on_launching=lambda *_: None, on_measured=lambda _: None)
    assert [m.round for m in measured] == [1, 1, 1, 2, 2, 3, 3]
    assert [m.status for m in measured].count(TrialStatus.FAILED) == 1


def test_each_launch_is_told_of_as_it_ends() -> None:
    told: list[list[Measurement]] = []
    measured = confirm(FakeLauncher(), _finalists(1, 2), on_launching=lambda *_: None, on_measured=told.append)
    assert told == [[each] for each in measured]


def test_a_finalist_that_fails_is_left_out_from_then_on() -> None:
    launcher = FakeLauncher().runs_out_of_memory_above(2)
    measured = confirm(launcher, _finalists(1, 4, 2), on_launching=lambda *_: None, on_measured=lambda _: None)
    assert _batches(launcher) == [1, 4, 2, 2, 1, 1, 2]
    assert [m.status for m in measured].count(TrialStatus.OOM) == 1


def test_confirmation_ends_where_no_finalist_is_left() -> None:
    launcher = FakeLauncher().runs_out_of_memory_above(2)
    assert len(confirm(launcher, _finalists(4, 8), on_launching=lambda *_: None, on_measured=lambda _: None)) == 2
    assert len(launcher.recycled) == 1
