"""Knows the verbs for sweeps that are sent elsewhere, with their options, and loads the one that is asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from raysweep.cli.options import DashboardOption, JobArgument, OptionOption, SweepArgument, ToOption


def submit(
    sweep: SweepArgument,
    to: ToOption = None,
    address: DashboardOption = None,
    option: OptionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show its log until it ends; its exit code is ours.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Send it once more after its job has ended.")] = False,
) -> None:
    """Send a sweep as a job to a Ray cluster, to Slurm or to Kubernetes. Sent twice, it is attached to.

    \b
    Examples:
        raysweep submit search_spaces/quickstart.yaml --to ray --address http://head:8265 --follow
        raysweep submit search_spaces/quickstart.yaml --to slurm --option nodes=2 --dry-run
    """
    from raysweep.cli import submit as verb

    verb.submit(sweep, to=to, address=address, options=option or [], dry_run=dry_run, follow_it=follow, again=again)


jobs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What has become of sweeps that were sent.")


@jobs.command("list")
def _list(to: ToOption = None, address: DashboardOption = None, option: OptionOption = None) -> None:
    """Print all sweeps that were sent to a place, whoever sent them."""
    from raysweep.cli import jobs as verbs

    verbs.list_jobs(to=to, address=address, options=option or [])


@jobs.command("status")
def _status(
    job: JobArgument, to: ToOption = None, address: DashboardOption = None, option: OptionOption = None
) -> None:
    """Print how a job stands; the exit code is the job's own, each time it is asked."""
    from raysweep.cli import jobs as verbs

    verbs.status(job, to=to, address=address, options=option or [])


@jobs.command("logs")
def _logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Until it ends; its exit code is ours.")] = False,
    to: ToOption = None,
    address: DashboardOption = None,
    option: OptionOption = None,
) -> None:
    """Print what a job's driver has printed."""
    from raysweep.cli import jobs as verbs

    verbs.logs(job, follow_it=follow, to=to, address=address, options=option or [])


@jobs.command("stop")
def _stop(job: JobArgument, to: ToOption = None, address: DashboardOption = None, option: OptionOption = None) -> None:
    """Ask a job to end; what it has measured is kept."""
    from raysweep.cli import jobs as verbs

    verbs.stop(job, to=to, address=address, options=option or [])


@jobs.command("fetch")
def _fetch(
    job: JobArgument,
    output: Annotated[str | None, typer.Option(metavar="DIR", help="Not results/JOB, but this.")] = None,
    to: ToOption = None,
    address: DashboardOption = None,
    option: OptionOption = None,
) -> None:
    """Bring a job's results here, also while it runs."""
    from raysweep.cli import jobs as verbs

    verbs.fetch(job, output=output, to=to, address=address, options=option or [])
