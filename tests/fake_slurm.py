"""Slurm's commands without Slurm: programs on PATH that keep jobs in files, and what becomes of a job in verbs."""

from __future__ import annotations

from pathlib import Path

SBATCH = """\
number=$(( $(ls "$STATE" | wc -l) + 100 ))
mkdir "$STATE/$number"
echo PENDING > "$STATE/$number/state"
echo 0:0 > "$STATE/$number/code"
pwd > "$STATE/$number/folder"
echo "$number"
"""
SCONTROL = """\
for number; do :; done
if [ ! -d "$STATE/$number" ] || [ -e "$STATE/$number/forgotten" ]; then
  echo "slurm_load_jobs error: Invalid job id specified" >&2
  exit 1
fi
echo "JobId=$number JobName=x UserId=me(0) JobState=$(cat "$STATE/$number/state") Reason=None Requeue=1 Restarts=0" \\
  "ExitCode=$(cat "$STATE/$number/code") NodeList=n[1-2]"
"""
SCANCEL = """\
for number; do :; done
if [ "$1" = --batch ]; then
  # The script is told; it writes its results, and its own exit code.
  echo FAILED > "$STATE/$number/state"
  echo 130:0 > "$STATE/$number/code"
else
  echo CANCELLED > "$STATE/$number/state"
fi
"""
SACCT = """\
echo "Slurm accounting storage is disabled" >&2
exit 1
"""


class FakeSlurm:
    """The commands, and the jobs that they know."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        self._state.mkdir(parents=True)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL, "scancel": SCANCEL, "sacct": SACCT}.items():
            program = self.bin / name
            program.write_text(f"#!/bin/sh\nSTATE='{self._state}'\n{text}")
            program.chmod(0o755)

    def runs(self, job_id: str) -> None:
        """The allocation is there."""
        self.says(job_id, "RUNNING")

    def prints(self, job_id: str, text: str) -> None:
        """The batch script prints."""
        with (self._folder(job_id) / "log.txt").open("a") as log:
            log.write(text)

    def ends(self, job_id: str, exit_code: int) -> None:
        """The batch script ends."""
        (self._folder(job_id) / "exit_code").write_text(f"{exit_code}\n")
        self.says(job_id, "FAILED" if exit_code else "COMPLETED", code=f"{exit_code}:0")

    def says(self, job_id: str, state: str, *, code: str = "0:0") -> None:
        """The controller says so of the job."""
        (self._job(job_id) / "state").write_text(state)
        (self._job(job_id) / "code").write_text(code)

    def forgets(self, job_id: str) -> None:
        """The controller has purged the record of the job."""
        (self._job(job_id) / "forgotten").touch()

    def _job(self, job_id: str) -> Path:
        folders = {each: Path((each / "folder").read_text().strip()) for each in self._state.iterdir()}
        return next(each for each, folder in folders.items() if folder.name == job_id)

    def _folder(self, job_id: str) -> Path:
        return Path((self._job(job_id) / "folder").read_text().strip())
