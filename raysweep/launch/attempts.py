"""How often a candidate is launched: once, and once more in a fresh group where the failure may not be its own."""

from __future__ import annotations

from dataclasses import replace

from raysweep.launch.launcher import Launcher
from raysweep.outcome import Outcome, may_run_again
from raysweep.trial import LaunchRequest, Measurement, Phase


def run_candidate(launcher: Launcher, request: LaunchRequest) -> list[Measurement]:
    """Every launch of one candidate, oldest first; the last one stands."""
    measurements = [launcher.launch(request)]
    while may_run_again(
        _outcome(measurements[-1]),
        launches=len(measurements),
        first_in_group=measurements[-1].position_in_group <= 1,
        device=request.workload.device,
    ):
        launcher.recycle(f"{request.candidate.candidate_id} runs once more after: {measurements[-1].reason}")
        measurements.append(launcher.launch(replace(request, phase=Phase.RETRY)))
    return measurements


def _outcome(measurement: Measurement) -> Outcome:
    return Outcome(
        status=measurement.status,
        failure_kind=measurement.failure_kind,
        memory_kind=measurement.memory_kind,
        reason=measurement.reason,
    )
