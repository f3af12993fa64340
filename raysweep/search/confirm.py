"""Measures the finalists again, each in three fresh worker groups, in rotated order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from raysweep.budget import CONFIRM_ROUNDS, CONFIRM_WINDOW_FACTOR
from raysweep.launch.attempts import run_candidate
from raysweep.launch.launcher import Launcher
from raysweep.trial import LaunchRequest, Measurement, Phase, TrialStatus


def rotated(finalists: Sequence[str], round_number: int) -> list[str]:
    """The order of a round, counted from 1: ABC, BCA, CAB. Each finalist is once the first of its group."""
    shift = (round_number - 1) % len(finalists)
    return [*finalists[shift:], *finalists[:shift]]


def confirm(
    launcher: Launcher,
    finalists: Sequence[LaunchRequest],
    *,
    on_launching: Callable[[str, int], None],
    on_measured: Callable[[list[Measurement]], None],
) -> list[Measurement]:
    """Measure all finalists once in each of three fresh groups; one that fails is left out from then on.

    `on_launching` is told each candidate and round before, `on_measured` its launches after: two, one by one, where
    the first was lost with its group.

    Pairs measured in one group share its process and its hour, so that their differences can be taken in pairs.
    """
    requests = {request.candidate.candidate_id: request for request in finalists}
    measured: list[Measurement] = []
    failed: set[str] = set()
    for round_number in range(1, CONFIRM_ROUNDS + 1):
        alive = [candidate_id for candidate_id in requests if candidate_id not in failed]
        if not alive:
            break
        launcher.recycle(f"confirmation round {round_number} starts in a fresh group")
        for candidate_id in rotated(alive, round_number):
            request = _longer(requests[candidate_id], round_number)
            on_launching(candidate_id, round_number)
            launches = run_candidate(launcher, request, on_launch=lambda launch: on_measured([launch]))
            measured.extend(launches)
            if launches[-1].status is not TrialStatus.COMPLETED:
                failed.add(candidate_id)
    return measured


def _longer(request: LaunchRequest, round_number: int) -> LaunchRequest:
    return replace(
        request,
        phase=Phase.CONFIRM,
        round=round_number,
        window=request.window.times(CONFIRM_WINDOW_FACTOR),
        deadline_s=request.deadline_s * CONFIRM_WINDOW_FACTOR,
    )
