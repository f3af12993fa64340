"""How often a candidate is launched."""

from __future__ import annotations

import signal
from dataclasses import replace

from builders import make_candidate, make_request, make_workload
from fakes import FakeLauncher

from raysweep.launch.attempts import run_candidate
from raysweep.trial import FailureKind, LaunchRequest, Phase, TrialStatus


def _request(micro_batch: int = 2, device: str = "cpu") -> LaunchRequest:
    candidate = make_candidate(micro_batch_size_per_gpu=micro_batch)
    return make_request(candidate=candidate, workload=make_workload(device=device))


def test_what_completes_is_launched_once() -> None:
    launcher = FakeLauncher()
    (measurement,) = run_candidate(launcher, _request())
    assert (measurement.status, measurement.phase) == (TrialStatus.COMPLETED, Phase.SEARCH)
    assert launcher.recycled == []


def test_a_lost_rank_gets_a_second_launch_in_a_fresh_group() -> None:
    launcher = FakeLauncher().loses_a_rank_at(1)
    lost, again = run_candidate(launcher, _request())
    assert lost.failure_kind is FailureKind.INFRASTRUCTURE
    assert (again.status, again.phase, again.position_in_group) == (TrialStatus.COMPLETED, Phase.RETRY, 1)
    assert launcher.recycled == ["s2-k0-b2-g1 runs once more after: rank 1: ProcessDied: killed by SIGKILL"]


def test_a_rank_lost_twice_is_the_end_of_it() -> None:
    measurements = run_candidate(FakeLauncher().loses_a_rank_at(1, 2), _request())
    assert [m.failure_kind for m in measurements] == [FailureKind.INFRASTRUCTURE] * 2


def test_the_same_fatal_signal_twice_is_the_fault_of_the_code_that_ran() -> None:
    launcher = FakeLauncher().ends_by_signal_at(signal.SIGSEGV, 1, 2)
    first, second = run_candidate(launcher, _request())
    assert [m.failure_kind for m in (first, second)] == [FailureKind.INFRASTRUCTURE, FailureKind.USER_CODE]
    assert second.reason == "rank 1: FatalSignal: process 7 ended, twice"


def test_two_fatal_signals_that_differ_stay_infrastructure() -> None:
    launcher = FakeLauncher().ends_by_signal_at(signal.SIGSEGV, 1).ends_by_signal_at(signal.SIGABRT, 2)
    assert run_candidate(launcher, _request())[-1].failure_kind is FailureKind.INFRASTRUCTURE


def test_a_launch_of_the_confirmation_that_is_repeated_stays_in_its_round() -> None:
    request = replace(_request(), phase=Phase.CONFIRM, round=2)
    launches = run_candidate(FakeLauncher().loses_a_rank_at(1), request)
    assert [(m.phase, m.round) for m in launches] == [(Phase.CONFIRM, 2)] * 2


def test_an_out_of_memory_stands_where_it_came_first_in_its_group() -> None:
    launcher = FakeLauncher().runs_out_of_memory_above(2)
    (measurement,) = run_candidate(launcher, _request(4, device="cuda"))
    assert measurement.status is TrialStatus.OOM


def test_an_out_of_memory_after_others_on_cuda_is_tried_in_a_fresh_group() -> None:
    launcher = FakeLauncher().runs_out_of_memory_above(2)
    run_candidate(launcher, _request(2, device="cuda"))
    measurements = run_candidate(launcher, _request(4, device="cuda"))
    assert [(m.status, m.group_id) for m in measurements] == [(TrialStatus.OOM, "g0"), (TrialStatus.OOM, "g1")]


def test_an_out_of_memory_on_cpu_stands() -> None:
    launcher = FakeLauncher().runs_out_of_memory_above(2)
    run_candidate(launcher, _request(2))
    assert len(run_candidate(launcher, _request(4))) == 1
    assert launcher.recycled == []
