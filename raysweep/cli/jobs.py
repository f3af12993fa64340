"""`raysweep jobs`: what has become of sweeps that were sent: list, status, logs, stop, fetch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from raysweep.cli.submit import end_with, follow_to_the_end, open_place
from raysweep.errors import ConfigError
from raysweep.submit.job import JobRequest, Submitter, base_and_attempt
from raysweep.submit.sending import latest_job
from raysweep.tables import aligned


def list_jobs(*, to: str | None, address: str | None, options: Sequence[str]) -> None:
    """Print all sweeps that were sent to a place."""
    submitter, _ = open_place(None, to=to, address=address, options=options)
    rows = [
        [status.job_id, status.state, "-" if status.exit_code is None else str(status.exit_code), status.words]
        for status in submitter.jobs()
    ]
    typer.echo(aligned(["job", "state", "exit code", "as said there"], rows) if rows else f"none at {submitter.where}")


def status(job: str, *, to: str | None, address: str | None, options: Sequence[str]) -> None:
    """Print how a job stands, and end with its exit code."""
    submitter, job_id = _job(job, to=to, address=address, options=options)
    end_with(submitter.status(job_id))


def logs(job: str, *, follow_it: bool, to: str | None, address: str | None, options: Sequence[str]) -> None:
    """Print what a job's driver has printed; when followed, end with its exit code."""
    submitter, job_id = _job(job, to=to, address=address, options=options)
    if follow_it:
        follow_to_the_end(submitter, job_id)
    typer.echo(submitter.logs(job_id), nl=False)


def stop(job: str, *, to: str | None, address: str | None, options: Sequence[str]) -> None:
    """Ask a job to end; what it has measured is kept."""
    submitter, job_id = _job(job, to=to, address=address, options=options)
    submitter.stop(job_id)
    known = {each.job_id: each for each in submitter.jobs()}
    typer.echo(known[job_id].line() if job_id in known else f"{job_id} is gone from {submitter.where}")


def fetch(job: str, *, output: str | None, to: str | None, address: str | None, options: Sequence[str]) -> None:
    """Bring a job's results here."""
    submitter, job_id = _job(job, to=to, address=address, options=options)
    base, _ = base_and_attempt(job_id) or (job_id, 1)
    folder = Path(output or f"results/{base}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(key="--output", value=str(folder), rule="is no folder")
    source = submitter.fetch(job_id, folder)
    typer.echo(f"{source} -> {folder}; raysweep show {folder}")


def _job(job: str, *, to: str | None, address: str | None, options: Sequence[str]) -> tuple[Submitter, str]:
    """The place and the job's name; a sweep file stands for its last job."""
    if base_and_attempt(job) and not Path(job).exists():
        submitter, _ = open_place(None, to=to, address=address, options=options)
        return submitter, job
    submitter, sweep = open_place(job, to=to, address=address, options=options)
    assert sweep is not None, "a sweep file was given"
    return submitter, latest_job(submitter, JobRequest(sweep=sweep))
