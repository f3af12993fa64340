"""Ray Jobs: a sweep as a job of a Ray cluster that is up, through its dashboard."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import AuthenticationError, RayError
from ray.job_submission import JobDetails, JobSubmissionClient

from raysweep.errors import PreflightError
from raysweep.results.store import fetch_folder
from raysweep.submit.driver_command import driver_command, in_shell, is_uri, sweep_inside
from raysweep.submit.job import AlreadyThere, JobRequest, JobState, JobStatus, base_and_attempt, no_such_job
from raysweep.submit.log_archive import printing_command, unpack_from_log
from raysweep.submit.package import Package, pack
from raysweep.submit_schema import RaySubmit
from raysweep.units import MIB

T = TypeVar("T")

STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.STOPPED,
}
"""Every state of `ray.job_submission.JobStatus`, in our words."""

PACKAGE_LIMIT_BYTES = 100 * MIB
"""The dashboard takes no larger request (`DASHBOARD_CLIENT_MAX_SIZE`, Ray 2.60), whatever the store behind it takes."""
TOO_LARGE = (
    "Name what the sweep does not need in .rayignore, or set submit.ray.working_dir to a smaller folder; large data "
    "belongs on a file system that the nodes see"
)
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
FETCH_LIMIT_S = 300.0
_POLL_S = 1.0


class RayJobs:
    """The Submitter for Ray Jobs."""

    def __init__(self, options: RaySubmit) -> None:
        self._options = options

    @property
    def where(self) -> str:
        """The dashboard's address."""
        return f"ray at {self._options.address or 'the address that Ray finds'}"

    def render(self, request: JobRequest) -> str:
        """The request of the Jobs API as JSON, and what the package holds."""
        package = self._package()
        shown = self._job(request, package)
        if package is not None:
            listed = [f"{name} ({path.stat().st_size} bytes)" for name, path in package.files]
            shown["runtime_env"]["working_dir"] = {"bytes": package.size_bytes, "files": listed}
        return json.dumps(shown, indent=2)

    def submit(self, request: JobRequest) -> None:
        """Upload the package and start the job; the same package is not uploaded twice."""
        package = self._package()
        if package is not None:
            package.check_size(limit_bytes=PACKAGE_LIMIT_BYTES, whose="Ray's dashboard", remedy=TOO_LARGE)
        job = self._job(request, package)
        client = self._client
        with tempfile.TemporaryDirectory(prefix="raysweep-package-") as folder:
            if package is not None:
                zipped = Path(folder, "working_dir.zip")
                package.write(zipped)
                job["runtime_env"]["working_dir"] = str(zipped)
            self._ask(lambda: client.submit_job(**job), taken=request.job_id)

    def jobs(self) -> Sequence[JobStatus]:
        """Jobs of ours on the cluster, those of other clients included."""
        details = self._ask(lambda: self._client.list_jobs())
        ours = [each for each in details if each.submission_id and base_and_attempt(each.submission_id)]
        return sorted((_status(each) for each in ours), key=lambda status: status.job_id)

    def status(self, job_id: str) -> JobStatus:
        """From the cluster's record of the job, which outlives the job."""
        return _status(self._details(job_id))

    def logs(self, job_id: str) -> str:
        """What the driver printed."""
        self._details(job_id)
        log: str = self._ask(lambda: self._client.get_job_logs(job_id))
        return log

    def stop(self, job_id: str) -> None:
        """SIGTERM, and after the time of `stop_seconds` SIGKILL."""
        if not _status(self._details(job_id)).state.is_finished:
            self._ask(lambda: self._client.stop_job(job_id))

    def fetch(self, job_id: str, folder: Path) -> str:
        """Have the head print the results folder as an archive into the log of a job of its own, and unpack that.

        It needs nothing but the dashboard's address, whatever else of the cluster is behind a firewall.
        """
        details = self._details(job_id)
        remote = (details.metadata or {}).get("results", "")
        if is_uri(remote):
            fetch_folder(remote, folder)
            return str(remote)
        entrypoint = printing_command(self._options.python, remote)
        name = f"fetch-{job_id}-{time.time_ns():x}"
        fetching = self._ask(lambda: self._client.submit_job(entrypoint=entrypoint, submission_id=name))
        deadline_s = time.monotonic() + FETCH_LIMIT_S
        while not (status := _status(self._details(fetching))).state.is_finished:
            if time.monotonic() > deadline_s:
                raise PreflightError(message=f"{fetching} did not end within {FETCH_LIMIT_S:.0f} s: {status.line()}")
            time.sleep(_POLL_S)
        log = self._ask(lambda: self._client.get_job_logs(fetching))
        if status.state is not JobState.SUCCEEDED:
            raise PreflightError(message=f"results cannot be fetched: {status.line()}\n{log.strip()}")
        unpack_from_log(log, folder)
        self._ask(lambda: self._client.delete_job(fetching))
        return f"{remote} on the head"

    def _package(self) -> Package | None:
        root = self._options.working_dir
        return None if root is None else pack(Path(root), with_raysweep=self._options.send_raysweep)

    def _job(self, request: JobRequest, package: Package | None) -> dict[str, Any]:
        """The keyword arguments of `submit_job`, less the package."""
        sweep, options = request.sweep, self._options
        results = self._results(request)
        runtime_env: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(options.stop_seconds)}}
        if options.pip:
            runtime_env["pip"] = list(options.pip)
        entrypoint = driver_command(
            python=[options.python],
            sweep=str(sweep.path) if package is None else sweep_inside(sweep, package.root),
            address="auto",
            **results,
        )
        return {
            "entrypoint": entrypoint,
            "submission_id": request.job_id,
            "runtime_env": runtime_env,
            "metadata": {
                "raysweep": sweep.file.name,
                "sweep_sha256": sweep.sweep_sha256,
                "results": results["results"],
            },
        }

    def _results(self, request: JobRequest) -> dict[str, str]:
        if is_uri(request.sweep.results):
            return in_shell(request.sweep.results)
        if self._options.results is not None:
            return in_shell(posixpath.join(self._options.results, request.base_id))
        under_home = f'"$HOME"/raysweep/{request.base_id}'
        return {"results": under_home, "folder": under_home}

    @cached_property
    def _client(self) -> JobSubmissionClient:
        # What the client tells of uploads and addresses is for Ray's own command line.
        for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
            logging.getLogger(name).setLevel(logging.WARNING)
        with _address_from_us(self._options.address):
            return self._ask(lambda: JobSubmissionClient(self._options.address))

    def _details(self, job_id: str) -> JobDetails:
        try:
            details: JobDetails = self._client.get_job_info(job_id)
        except RuntimeError as error:
            if "status code 404" not in str(error):
                raise self._refusal(error) from None
            raise no_such_job(job_id, self.where, [each.job_id for each in self.jobs()]) from None
        except (OSError, RayError) as error:
            raise self._refusal(error) from None
        return details

    def _ask(self, call: Callable[[], T], *, taken: str = "") -> T:
        """The answer of the cluster.

        Raises:
            AlreadyThere: when it has a job of the name `taken`.
            PreflightError: with the cluster's own words.
        """
        try:
            return call()
        except (OSError, RuntimeError, ValueError, RayError) as error:
            if taken and f"Job with submission_id {taken} already exists" in str(error):
                raise AlreadyThere(taken) from None
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> PreflightError:
        if isinstance(error, AuthenticationError):
            hint = (
                "give the cluster's token: RAY_AUTH_MODE=token with RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
                "~/.ray/auth_token"
            )
            return PreflightError(message=f"{self.where} refuses: {' '.join(str(error).split())}; {hint}")
        return PreflightError(message=f"{self.where}: {error}")


@contextmanager
def _address_from_us(address: str | None) -> Iterator[None]:
    """Ray prefers its variables to an address that is given; one that a person wrote goes first here."""
    hidden = {} if address is None else {name: os.environ.pop(name, None) for name in ADDRESS_VARIABLES}
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in hidden.items() if value is not None})


def _status(details: JobDetails) -> JobStatus:
    word = str(details.status)
    state = STATES.get(word, JobState.UNKNOWN)
    reason = ""
    if state in (JobState.PENDING, JobState.FAILED) and details.driver_exit_code is None:
        # With an exit code the message is the end of the log, which is shown anyway.
        reason = " ".join(filter(None, [details.error_type, details.message]))
    return JobStatus(
        job_id=details.submission_id or "",
        state=state,
        words=f"ray: {word}",
        exit_code=details.driver_exit_code if state is JobState.FAILED else None,
        reason=reason,
    )
