"""Sends a sweep once, however often it is asked, and follows a job to its end: the same for every place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from raysweep.errors import ConfigError, PreflightError
from raysweep.submit.job import AlreadyThere, JobRequest, JobState, JobStatus, Submitter, base_and_attempt
from raysweep.units import format_seconds

POLL_S = 2.0
PATIENCE_S = 120.0
"""A place that does not answer for this long while a job is followed is given up; the job itself goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What came of sending a sweep."""

    job_id: str
    before: JobStatus | None
    """How the job stood that was there already, where nothing was sent."""


def send(submitter: Submitter, request: JobRequest, *, again: bool = False) -> Sent:
    """Send a sweep, or find the job that it was sent as before.

    Args:
        submitter: the place.
        request: the sweep; the number of its attempt is found here.
        again: where its last job has ended, send it once more.

    Raises:
        ConfigError: when `again` is asked for while a job of this sweep is on its way.
        PreflightError: when the place cannot be reached, or refuses it.
    """
    latest = _latest(submitter, request)
    if latest is not None and not again:
        return Sent(job_id=latest.job_id, before=latest)
    if latest is not None and not latest.state.is_finished:
        raise ConfigError(
            key="--again", rule=f"{latest.job_id} is {latest.state} there; stop it first, or follow it without --again"
        )
    attempt = 1 if latest is None else _attempt(latest) + 1
    request = replace(request, attempt=attempt)
    try:
        submitter.submit(request)
    except AlreadyThere:  # another client was faster
        return Sent(job_id=request.job_id, before=submitter.status(request.job_id))
    return Sent(job_id=request.job_id, before=None)


def latest_job(submitter: Submitter, request: JobRequest) -> str:
    """The name of the last job of a sweep.

    Raises:
        ConfigError: when it was never sent there.
    """
    latest = _latest(submitter, request)
    if latest is None:
        raise ConfigError(
            key=str(request.sweep.path),
            rule=f"was not sent to {submitter.where}; `raysweep submit` sends it (its job would be {request.base_id})",
        )
    return latest.job_id


def _latest(submitter: Submitter, request: JobRequest) -> JobStatus | None:
    ours = [job for job in submitter.jobs() if (base_and_attempt(job.job_id) or ("", 0))[0] == request.base_id]
    return max(ours, key=_attempt, default=None)


def _attempt(job: JobStatus) -> int:
    return (base_and_attempt(job.job_id) or ("", 0))[1]


def follow(
    submitter: Submitter,
    job_id: str,
    *,
    write: Callable[[str], None],
    note: Callable[[str], None],
    poll_s: float | None = None,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> JobStatus:
    """Show a job's log as it grows, and each change of its state, until it ends or nobody knows of it any more.

    Args:
        submitter: the place.
        job_id: the job.
        write: takes new text of the log, as it is.
        note: takes a line about the job itself.
        poll_s: seconds between two looks; `POLL_S` where not given.
        patience_s: how long the place may be silent, or say nothing that we know.
        clock: seconds of a clock that never goes back.
        sleep: waits for so many seconds.

    Raises:
        PreflightError: when the place has been silent for too long; the job is not touched.
    """
    poll_s = POLL_S if poll_s is None else poll_s
    shown, said, heard_s, known_s = 0, "", clock(), clock()
    while True:
        try:
            # The state first: what is written between the two looks is in the log then.
            status = submitter.status(job_id)
            log = submitter.logs(job_id)
        except PreflightError as error:
            if clock() - heard_s > patience_s:
                raise PreflightError(
                    message=f"{error}; silent for {format_seconds(clock() - heard_s)}. {job_id} itself was not touched"
                ) from None
            sleep(poll_s)
            continue
        heard_s = clock()
        if status.line() != said and not status.state.is_finished:
            note(status.line())
            said = status.line()
        if len(log) < shown:
            shown = 0  # another log: the job began anew
        if log[shown:]:
            write(log[shown:])
            shown = len(log)
        if status.state is not JobState.UNKNOWN:
            known_s = clock()
        if status.state.is_finished or clock() - known_s > patience_s:
            return status
        sleep(poll_s)
