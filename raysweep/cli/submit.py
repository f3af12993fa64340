"""`raysweep submit`: sends a sweep as a job to Ray, Slurm or Kubernetes, once, and follows it."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from raysweep.errors import ConfigError, nearest_name
from raysweep.submit.job import INTERRUPTED, JobRequest, JobStatus, Submitter
from raysweep.submit.places import make_submitter
from raysweep.submit.sending import follow, send
from raysweep.submit_schema import PLACES, read_options
from raysweep.sweep_file import Sweep, load_sweep, submit_section


def submit(
    sweep: str,
    *,
    to: str | None,
    address: str | None,
    options: Sequence[str],
    dry_run: bool,
    follow_it: bool,
    again: bool,
) -> None:
    """Send a sweep.

    Raises:
        typer.Exit: with the job's own exit code where it has ended, and 130 where following it was interrupted.
    """
    submitter, read = open_place(sweep, to=to, address=address, options=options)
    assert read is not None, "a sweep file was given"
    request = JobRequest(sweep=read)
    if dry_run:
        typer.echo(submitter.render(request))
        return
    sent = send(submitter, request, again=again)
    if sent.before is None:
        typer.echo(f"submitted {sent.job_id} to {submitter.where}")
    else:
        typer.echo(f"attached to {sent.job_id}, which was sent before to {submitter.where}; nothing was sent now")
    if follow_it:
        follow_to_the_end(submitter, sent.job_id)
    if sent.before is None:
        typer.echo(f"follow it with: raysweep jobs logs {sent.job_id} --to {read.file.submit.to or to} --follow")
        return
    end_with(sent.before)


def open_place(
    sweep: str | None, *, to: str | None, address: str | None, options: Sequence[str]
) -> tuple[Submitter, Sweep | None]:
    """The place that options and sweep file name, and the sweep where a file is given.

    Raises:
        ConfigError: when an option is not right, or no place is named.
    """
    if to is not None and to not in PLACES:
        raise ConfigError(
            key="--to", value=to, rule=f"must be one of {', '.join(PLACES)}", nearest=nearest_name(to, PLACES)
        )
    given = read_options(options)
    if address is not None:
        if to not in (None, "ray"):
            raise ConfigError(key="--address", value=address, rule=f"is an option of --to ray, not of --to {to}")
        given["address"] = address
    place = to or (load_sweep(sweep).file.submit.to if sweep else None)
    if place is None:
        raise ConfigError(key="--to", rule=f"say where: {', '.join(PLACES)}; or write it into the file as submit.to")
    read = load_sweep(sweep, submit={place: given}) if sweep else None
    return make_submitter(place, read.file.submit if read else submit_section({place: given})), read


def follow_to_the_end(submitter: Submitter, job_id: str) -> None:
    """Show a job until it ends.

    Raises:
        typer.Exit: with its exit code; 130 after Ctrl-C, which leaves the job alone.
    """
    try:
        status = follow(submitter, job_id, write=lambda text: typer.echo(text, nl=False), note=typer.echo)
    except KeyboardInterrupt:
        typer.echo(f"\nno longer following; {job_id} goes on at {submitter.where}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    end_with(status)


def end_with(status: JobStatus) -> None:
    """Say how a job stands as the last line, and end with its code.

    Raises:
        typer.Exit: with the job's exit code.
    """
    typer.echo(status.line())
    raise typer.Exit(status.code)
