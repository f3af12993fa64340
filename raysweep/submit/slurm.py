"""Slurm: a sweep as a batch job, in a folder of its own on a file system that every node sees."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from raysweep.errors import ConfigError, PreflightError
from raysweep.results.store import fetch_folder
from raysweep.submit.job import (
    INTERRUPTED,
    AlreadyThere,
    JobRequest,
    JobState,
    JobStatus,
    base_and_attempt,
    no_such_job,
)
from raysweep.submit.slurm_script import SCRIPT, render_scripts
from raysweep.submit.slurm_states import job_state
from raysweep.submit_schema import SlurmSubmit

NUMBER, EXIT_CODE, LOG, STOPPED, RESULTS = "slurm_id", "exit_code", "log.txt", "stopped", "results"
FORGOTTEN = "Invalid job id specified"
"""What Slurm's controller says of a job that ended some minutes ago (MinJobAge)."""
_FIELD = re.compile(r"(\w+)=(\S*)")


class Slurm:
    """The Submitter for Slurm."""

    def __init__(self, options: SlurmSubmit) -> None:
        self._options = options
        self._working_dir = Path.cwd()
        self._folder = Path(options.folder).resolve()

    @property
    def where(self) -> str:
        """The folder of the jobs."""
        return f"slurm, jobs in {self._folder}"

    def render(self, request: JobRequest) -> str:
        """Both scripts and the command that sends them."""
        parts = [f"# {self._of(request.job_id) / name}\n{text}" for name, text in self._scripts(request).items()]
        command = f"cd {shlex.quote(str(self._of(request.job_id)))} && {shlex.join(_sbatch())}"
        return "\n".join([*parts, f"# sent with\n{command}"])

    def submit(self, request: JobRequest) -> None:
        """Write the scripts into the job's folder and call sbatch there."""
        scripts = self._scripts(request)
        folder = self._of(request.job_id)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            self._number(request.job_id)
            raise AlreadyThere(request.job_id) from None
        try:
            for name, text in scripts.items():
                (folder / name).write_text(text)
            (folder / RESULTS).write_text(self._results(request))
            number = _ask(*_sbatch(), folder=folder).strip().partition(";")[0]
        except BaseException:
            shutil.rmtree(folder)
            raise
        (folder / NUMBER).write_text(f"{number}\n")

    def jobs(self) -> Sequence[JobStatus]:
        """Jobs whose folder is here."""
        return [self.status(job_id) for job_id in self._known()]

    def status(self, job_id: str) -> JobStatus:
        """From the controller; of a job that it has forgotten, from accounting, and else from what the job left."""
        number = self._number(job_id)
        fields = _controller(number) or _accounting(number) or self._left_behind(job_id)
        word, code, reason = fields
        state = job_state(word)
        if state is JobState.FAILED and code == INTERRUPTED and (self._of(job_id) / STOPPED).exists():
            state = JobState.STOPPED  # we asked for it, and the sweep has written its results
        return JobStatus(
            job_id=job_id,
            state=state,
            words=f"slurm {number}: {word or 'unknown'}",
            exit_code=code if state.is_finished else None,
            reason=reason,
        )

    def logs(self, job_id: str) -> str:
        """All allocations of the job, one after the other."""
        self._number(job_id)
        with contextlib.suppress(FileNotFoundError):
            return (self._of(job_id) / LOG).read_text(encoding="utf-8", errors="replace")
        return ""

    def stop(self, job_id: str) -> None:
        """A job that runs is asked to write its results; one that waits is cancelled."""
        status = self.status(job_id)
        number = self._number(job_id)
        if status.state is JobState.RUNNING:
            (self._of(job_id) / STOPPED).touch()
            _ask("scancel", "--batch", "--signal=USR1", number)
        elif not status.state.is_finished:
            _ask("scancel", number)

    def fetch(self, job_id: str, folder: Path) -> str:
        """Copy the results, which are on this file system already, or fetch them from their URI."""
        self._number(job_id)
        results = (self._of(job_id) / RESULTS).read_text()
        if "://" in results:
            fetch_folder(results, folder)
        elif not Path(results).is_dir():
            raise PreflightError(message=f"{job_id} has written no results yet: {results} is not there")
        elif Path(results).resolve() != folder.resolve():
            shutil.copytree(results, folder, dirs_exist_ok=True)
        return results

    def _scripts(self, request: JobRequest) -> dict[str, str]:
        return render_scripts(request, self._options, working_dir=self._working_dir, folder=self._of(request.job_id))

    def _results(self, request: JobRequest) -> str:
        results = request.sweep.results
        return results if "://" in results else str(self._working_dir / results)

    def _of(self, job_id: str) -> Path:
        return self._folder / job_id

    def _known(self) -> list[str]:
        folders = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        return [each.name for each in folders if base_and_attempt(each.name) and (each / NUMBER).exists()]

    def _number(self, job_id: str) -> str:
        """Slurm's number of a job."""
        try:
            return (self._of(job_id) / NUMBER).read_text().strip()
        except FileNotFoundError:
            if not self._of(job_id).is_dir():
                raise no_such_job(job_id, self.where, self._known()) from None
            raise ConfigError(
                key="job",
                value=job_id,
                rule=f"{self._of(job_id)} holds no job number, so its sending was cut off; look for it with "
                f"`squeue --name {job_id}`, then remove that folder",
            ) from None

    def _left_behind(self, job_id: str) -> tuple[str, int | None, str]:
        code_file = self._of(job_id) / EXIT_CODE
        if not code_file.exists():
            return "", None, "Slurm has forgotten it, and it has left no exit code"
        code = int(code_file.read_text())
        return ("FAILED" if code else "COMPLETED"), code, "as the job itself noted; Slurm has forgotten it"


def _sbatch() -> list[str]:
    return ["sbatch", "--parsable", SCRIPT]


def _controller(number: str) -> tuple[str, int | None, str] | None:
    """State, exit code and reason by `scontrol`; None where it has forgotten the job."""
    try:
        shown = _ask("scontrol", "show", "job", "--oneliner", number)
    except PreflightError as error:
        if FORGOTTEN in str(error):
            return None
        raise
    fields = dict(_FIELD.findall(shown))
    restarts = int(fields.get("Restarts") or 0)
    said = [fields.get("Reason", "None"), f"allocation {restarts + 1}" if restarts else "None"]
    return (
        fields.get("JobState", ""),
        _exit_code(fields.get("ExitCode", "")),
        ", ".join(each for each in said if each != "None"),
    )


def _accounting(number: str) -> tuple[str, int | None, str] | None:
    """The same by `sacct`, where Slurm keeps accounts."""
    command = (
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--jobs",
        number,
        "--format=State,ExitCode,Reason",
    )
    try:
        lines = _ask(*command).splitlines()
    except PreflightError:
        return None
    if not lines or lines[-1].count("|") != 2:
        return None
    word, code, reason = lines[-1].split("|")
    return word, _exit_code(code), "" if reason == "None" else reason


def _exit_code(text: str) -> int | None:
    """Of `CODE:SIGNAL`; a signal counts as a shell counts it."""
    code, _, signal_number = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(signal_number) if signal_number.isdigit() and int(signal_number) else 0)


def _ask(*command: str, folder: Path | None = None) -> str:
    """What a command of Slurm's prints.

    Raises:
        PreflightError: when it is not there, or fails; with its own words.
    """
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PreflightError(
            message=f"{command[0]} is not on this machine; submit from one that has Slurm's commands (a login node)"
        ) from None
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).strip()
        raise PreflightError(message=f"{shlex.join(command)} failed with code {ran.returncode}: {said}")
    return ran.stdout
