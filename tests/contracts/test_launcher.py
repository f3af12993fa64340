"""The launcher contract, on every launcher: the same suite in this process, on warm and on fresh worker groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_request

from raysweep.launch.launcher import Launcher
from raysweep.trial import FailureKind, LaunchRequest, TrialStatus
from raysweep.units import KIB, MIB

KINDS_ON_RAY = [
    pytest.param("warm", marks=pytest.mark.ray),
    pytest.param("fresh", marks=[pytest.mark.ray, pytest.mark.slow]),
]


@pytest.fixture(scope="module", params=["in_process", *KINDS_ON_RAY])
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    if request.param == "in_process":
        import torch

        from raysweep.launch.in_process import InProcessLauncher

        torch.set_num_threads(1)  # sums of several threads come in any order, so they do not repeat to the bit
        yield InProcessLauncher()
        return
    yield from _on_ray(tmp_path_factory.mktemp("logs"), fresh=request.param == "fresh")


def _on_ray(logs: Path, *, fresh: bool) -> Iterator[Launcher]:
    from raysweep.launch.cluster import ray_session
    from raysweep.launch.warm_group import GroupSpec, WarmGroup

    spec = GroupSpec(
        sweep_id="contract",
        world_size=1,
        resources_per_worker={"CPU": 0.5},
        placement="PACK",
        device="cpu",
        log_folder=str(logs),
        fresh=fresh,
    )
    with ray_session(address=None, environment={"OMP_NUM_THREADS": "1"}), WarmGroup(spec) as client:
        yield client


def _request(**changes: Any) -> LaunchRequest:
    return make_request(world_size=1, **changes)


def test_a_candidate_that_fits_gives_figures(launcher: Launcher) -> None:
    measurement = launcher.launch(_request(memory_budget_bytes=64 * MIB))
    assert measurement.status is TrialStatus.COMPLETED, measurement.reason
    assert measurement.figures is not None and measurement.figures.measured_steps >= 2
    assert len(measurement.worker_pids) == 1


def test_out_of_memory_is_an_outcome_with_its_peak(launcher: Launcher) -> None:
    measurement = launcher.launch(_request(memory_budget_bytes=64 * KIB))
    assert measurement.status is TrialStatus.OOM
    assert (measurement.peak_memory_bytes or 0) > 64 * KIB
    assert measurement.figures is None


def test_an_out_of_memory_on_cpu_costs_no_group(launcher: Launcher, request: pytest.FixtureRequest) -> None:
    if "fresh" in request.node.callspec.id:
        pytest.skip("shares no group")
    first = launcher.launch(_request(memory_budget_bytes=64 * KIB))
    second = launcher.launch(_request(memory_budget_bytes=64 * MIB))
    assert second.status is TrialStatus.COMPLETED
    assert second.group_id == first.group_id
    assert second.position_in_group == first.position_in_group + 1


def test_recycling_gives_a_new_group_and_notes_the_end_of_the_old(launcher: Launcher) -> None:
    before = launcher.launch(_request())
    launcher.recycle("the test wants a fresh one")
    after = launcher.launch(_request())
    assert after.group_id != before.group_id
    assert after.position_in_group == 1
    ends = {end.group_id: end.reason for end in launcher.group_ends()}
    assert ends[before.group_id] == "the test wants a fresh one"


def test_an_error_of_the_model_is_the_users_and_the_next_candidate_runs(launcher: Launcher) -> None:
    request = _request()
    broken = replace(request, workload=replace(request.workload, model={**request.workload.model, "heads": 5}))
    failed = launcher.launch(broken)
    assert failed.status is TrialStatus.FAILED
    assert failed.failure_kind is FailureKind.USER_CODE
    assert failed.failures[0].message
    assert launcher.launch(request).status is TrialStatus.COMPLETED


def test_peaks_and_losses_repeat_whatever_ran_before(launcher: Launcher) -> None:
    request = _request()
    first = launcher.launch(request).figures
    launcher.launch(_request(candidate=make_candidate(zero_stage=3, activation_checkpoint_interval=1)))
    again = launcher.launch(request).figures
    assert first is not None and again is not None
    assert again.peak_memory_bytes == first.peak_memory_bytes
    assert (again.first_loss, again.loss_at_step_5) == (first.first_loss, first.loss_at_step_5)


def test_sixty_candidates_in_a_row_leave_the_peak_where_it_was_b42(
    launcher: Launcher, request: pytest.FixtureRequest
) -> None:
    if "in_process" not in request.node.callspec.id:
        pytest.skip("`make soak` does it in worker groups")
    peaks = [
        launcher.launch(_request(candidate=make_candidate(zero_stage=number % 4))).peak_memory_bytes
        for number in range(60)
    ]
    assert peaks[:4] == peaks[-4:]
