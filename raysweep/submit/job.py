"""The contract of every place that takes a sweep as a job: what goes in, how a job stands, what can be asked of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from raysweep.errors import ConfigError
from raysweep.sweep_file import Sweep

LONGEST_NAME = 28
"""With the hash and the number of the attempt it makes 45 characters; KubeRay takes 47."""
INTERRUPTED = 130
_JOB_ID = re.compile(r"(?P<base>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?-[0-9a-f]{12})(?:-(?P<attempt>[0-9]{1,3}))?")


class JobState(StrEnum):
    """How a job stands, in words of our own; each place translates its own in one table."""

    PENDING = "PENDING"
    """Taken, and not at work: it waits for resources, for its environment, or to be queued again."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    """Ended because somebody asked for it."""
    UNKNOWN = "UNKNOWN"
    """The place says a word that is not in its table, or nothing of the job any more."""

    @property
    def is_finished(self) -> bool:
        """Whether it will not change by itself."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """How a job stands now."""

    job_id: str
    state: JobState
    words: str
    """What the place itself says, e.g. `slurm: COMPLETING`."""
    exit_code: int | None = None
    """Of the sweep's driver; None while it runs, and where it never came to run."""
    reason: str = ""
    conflict: str = ""
    """Where two sources of the place disagree: what each says."""

    @property
    def code(self) -> int:
        """The exit code of a command that asks for this job: the sweep's own, and never 0 for what has not succeeded.

        0 also while the job is on its way.
        """
        if self.state is JobState.STOPPED:
            return INTERRUPTED
        if self.state in (JobState.FAILED, JobState.UNKNOWN):
            return self.exit_code or 1
        return 0

    def line(self) -> str:
        """One line for a person; its first word is the state."""
        code = f", exit code {self.exit_code}" if self.exit_code is not None else ""
        reason = f": {self.reason}" if self.reason else ""
        conflict = f"; CONFLICT: {self.conflict}" if self.conflict else ""
        return f"{self.state} {self.job_id} ({self.words}{code}){reason}{conflict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A sweep that is to be sent."""

    sweep: Sweep
    attempt: int = 1
    """Counted from 1; a later one goes on with the results of the former where the place keeps them."""

    @property
    def base_id(self) -> str:
        """The name that all attempts of a sweep share: equal sweeps, equal names."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.sweep.file.name.lower()).strip("-")
        named = slug if slug[:1].isalpha() else f"sweep-{slug}"
        return f"{named[:LONGEST_NAME].strip('-')}-{self.sweep.sweep_sha256[:12]}"

    @property
    def job_id(self) -> str:
        """The name of this attempt; letters, digits and hyphens, a letter first, as every place takes it."""
        return self.base_id if self.attempt == 1 else f"{self.base_id}-{self.attempt}"


def base_and_attempt(job_id: str) -> tuple[str, int] | None:
    """The parts of a job's name; None where it is none of ours."""
    found = _JOB_ID.fullmatch(job_id)
    return (found["base"], int(found["attempt"] or 1)) if found else None


class AlreadyThere(Exception):
    """The place has a job of this name already: another client has sent the same sweep just now."""


class Submitter(Protocol):
    """A place that takes sweeps as jobs.

    All of it may raise `PreflightError` where the place cannot be reached or refuses us, with its own words in the
    message, and `ConfigError` where it has no such job.
    """

    @property
    def where(self) -> str:
        """The place, for a person."""

    def render(self, request: JobRequest) -> str:
        """Exactly what `submit` sends, as text; asks nobody."""

    def submit(self, request: JobRequest) -> None:
        """Send it; returns as soon as the place has taken it.

        Raises:
            AlreadyThere: when there is a job of this name.
        """

    def jobs(self) -> Sequence[JobStatus]:
        """All jobs of ours, in the order of their names."""

    def status(self, job_id: str) -> JobStatus:
        """How it stands."""

    def logs(self, job_id: str) -> str:
        """What its driver has printed so far; empty before it runs."""

    def stop(self, job_id: str) -> None:
        """Ask it to write its results and end; nothing happens to one that has ended."""

    def fetch(self, job_id: str, folder: Path) -> str:
        """Bring its results into a folder; returns the place they came from, for a person."""


def no_such_job(job_id: str, where: str, known: Sequence[str]) -> ConfigError:
    """The error for a job that a place does not have."""
    listed = f"jobs there: {', '.join(known)}" if known else "there is none of raysweep's"
    return ConfigError(key="job", value=job_id, rule=f"is not known to {where}; {listed}")
