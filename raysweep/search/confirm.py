"""Measures the finalists again, each in three fresh worker groups, in rotated order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from raysweep.budget import CONFIRM_ROUNDS
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

    `on_launching` is told each candidate and round before, `on_measured` each launch after.

    Pairs measured in one group share its process and its hour, so that their differences can be taken in pairs.
    """
    requests = {request.candidate.candidate_id: request for request in finalists}
    measured: list[Measurement] = []
    for round_number in range(1, CONFIRM_ROUNDS + 1):
        failed = {m.candidate_id for m in measured if m.status is not TrialStatus.COMPLETED}
        alive = [candidate_id for candidate_id in requests if candidate_id not in failed]
        if not alive:
            break
        launcher.recycle(f"confirmation round {round_number} starts in a fresh group")
        for candidate_id in rotated(alive, round_number):
            request = replace(requests[candidate_id], phase=Phase.CONFIRM, round=round_number)
            on_launching(candidate_id, round_number)
            measured.append(launcher.launch(request))
            on_measured([measured[-1]])
    return measured
