"""How often a candidate is launched: once, and once more in a fresh group where the failure may not be its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raysweep.launch.launcher import Launcher
from raysweep.outcome import Outcome, may_run_again
from raysweep.trial import FailureKind, LaunchRequest, Measurement, Phase


def run_candidate(
    launcher: Launcher, request: LaunchRequest, on_launch: Callable[[Measurement], None] = lambda measurement: None
) -> list[Measurement]:
    """Every launch of one candidate, oldest first; the last one stands.

    The second launch of a search is of phase `retry`; of a confirmation it has its phase and round. `on_launch` is
    given each as soon as it is over: no other word of it is left where the next one cannot even start.

    Raises:
        GroupCannotStart: when no worker group comes up for one of them.
    """
    again = replace(request, phase=Phase.RETRY) if request.phase is Phase.SEARCH else request
    measurements = [launcher.launch(request)]
    on_launch(measurements[-1])
    while may_run_again(
        _outcome(measurements[-1]),
        launches=len(measurements),
        first_in_group=measurements[-1].position_in_group <= 1,
        device=request.workload.device,
    ):
        launcher.recycle(f"{request.candidate.candidate_id} runs once more after: {measurements[-1].reason}")
        measurements.append(_blamed(measurements[-1], launcher.launch(again)))
        on_launch(measurements[-1])
    return measurements


def _blamed(first: Measurement, second: Measurement) -> Measurement:
    """The second launch; where both ended by the same fatal signal, nothing but the code that ran is left to blame."""
    signals = [m.failures[0].exit_signal if m.failures else None for m in (first, second)]
    if second.failure_kind is not FailureKind.INFRASTRUCTURE or signals[1] is None or signals[0] != signals[1]:
        return second
    return replace(second, failure_kind=FailureKind.USER_CODE, reason=f"{second.reason}, twice")


def _outcome(measurement: Measurement) -> Outcome:
    return Outcome(
        status=measurement.status,
        failure_kind=measurement.failure_kind,
        memory_kind=measurement.memory_kind,
        reason=measurement.reason,
    )
