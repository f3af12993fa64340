"""The batch script of Slurm as bash runs it, with Slurm's and Ray's commands in the roles that they have there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from builders import write_sweep

from raysweep.submit.job import JobRequest
from raysweep.submit.slurm_script import render_scripts
from raysweep.submit_schema import SlurmSubmit
from raysweep.sweep_file import load_sweep

SCONTROL = """\
case "$1 $2" in
"show hostnames") echo n1; echo n2 ;;
"show node") echo "NodeName=n1 NodeAddr=127.0.1.1 State=ALLOCATED" ;;
requeue*) echo "requeued $2" >> "$HERE/asked" ;;
esac
"""
SRUN = """\
while [ "$1" != bash ]; do shift; done
exec "$@"
"""
RAY = """\
echo ray "$@" >> "$HERE/ray_words"
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
RAY_THAT_FAILS_ONCE = '[ -e "$HERE/ray_words" ] || { echo failed > "$HERE/ray_words"; exit 1; }\n' + RAY
ENDS = 'echo driver: "$@"; exit 3\n'
STOPS_CLEANLY = """\
trap 'echo results written; exit 130' TERM
touch "$HERE/running"
while :; do sleep 0.05; done
"""


class Allocation:
    """The script with its job folder, and what runs in it."""

    def __init__(self, folder: Path, python: str, *, ray: str = RAY, **options: object) -> None:
        self.folder = folder
        self.job_folder = folder / "jobs" / "it's"
        self.job_folder.mkdir(parents=True)
        (folder / "bin").mkdir()
        programs = {
            "scontrol": SCONTROL,
            "srun": SRUN,
            "ray": ray,
            "python": python,
            "hostname": "echo 10.0.0.1 172.17.0.1\n",
        }
        for name, text in {**programs, "sleep": 'case "$1" in 0.*) exec /bin/sleep "$1" ;; esac\n'}.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\nHERE='{folder}'\n{text}")
            (folder / "bin" / name).chmod(0o755)
        request = JobRequest(sweep=load_sweep(write_sweep(folder, results="results")))
        settings = SlurmSubmit(python=str(folder / "bin" / "python"), nodes=2, **options)
        scripts = render_scripts(request, settings, working_dir=folder, folder=self.job_folder)
        for name, text in scripts.items():
            (self.job_folder / name).write_text(text)

    def start(self, *, restarts: int = 0) -> subprocess.Popen[str]:
        """As slurmd starts it."""
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        return subprocess.Popen(
            ["bash", str(self.job_folder / "job.sbatch")],
            env=environment,
            cwd=self.job_folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def told_while_it_runs(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Its exit code and output after the signal of --signal."""
        limit_s = time.monotonic() + 60
        while not (self.folder / "running").exists() and time.monotonic() < limit_s:
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    @property
    def asked(self) -> str:
        """What Slurm was asked to queue again."""
        path = self.folder / "asked"
        return path.read_text() if path.exists() else ""


def test_the_code_of_the_sweep_is_the_code_of_the_job(tmp_path: Path) -> None:
    allocation = Allocation(tmp_path, ENDS)
    process = allocation.start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    # The address that another node can reach: Debian's 127.0.1.1 for a node's own name is none.
    assert "driver: -m raysweep.cli.main run sweep.yaml --address 10.0.0.1:22345 --results results --yes" in output
    agents = ("dashboard-agent-grpc", "metrics-export", "runtime-env-agent", "dashboard-agent-listen")
    ports = " ".join(f"--{name}-port={number}" for number, name in enumerate(agents, start=32460))
    words = f"ray symmetric-run --address 10.0.0.1:22345 --min-nodes 2 {ports} --num-cpus=1 -- bash"
    assert (tmp_path / "ray_words").read_text().startswith(words)
    assert (allocation.job_folder / "exit_code").read_text() == "3\n" and allocation.asked == ""


def test_ray_that_fails_before_the_sweep_has_begun_is_started_again(tmp_path: Path) -> None:
    allocation = Allocation(tmp_path, ENDS, ray=RAY_THAT_FAILS_ONCE)
    output, _ = (process := allocation.start()).communicate(timeout=60)
    assert process.returncode == 3, output
    words = (tmp_path / "ray_words").read_text().splitlines()
    # A sweep that fails is not.
    assert words[0] == "failed" and len(words) == 2 and output.count("driver:") == 1


def test_near_the_limit_the_sweep_writes_its_results_and_is_queued_again(tmp_path: Path) -> None:
    allocation = Allocation(tmp_path, STOPS_CLEANLY)
    code, output = allocation.told_while_it_runs(allocation.start())
    assert "the time limit is near" in output and "results written" in output, output
    assert allocation.asked == "requeued 12345\n"
    assert code == 130  # where Slurm does not end the script first
    assert not (allocation.job_folder / "exit_code").exists()  # the job has not ended


def test_allocations_have_an_end(tmp_path: Path) -> None:
    allocation = Allocation(tmp_path, STOPS_CLEANLY, allocations=2)
    code, output = allocation.told_while_it_runs(allocation.start(restarts=1))
    assert code == 130 and "2 allocations are spent" in output and allocation.asked == ""


def test_a_sweep_that_is_stopped_is_not_queued_again(tmp_path: Path) -> None:
    allocation = Allocation(tmp_path, STOPS_CLEANLY)
    process = allocation.start()
    (allocation.job_folder / "stopped").touch()
    code, output = allocation.told_while_it_runs(process)
    assert code == 130 and "asked to stop" in output and "results written" in output and allocation.asked == ""
    assert (allocation.job_folder / "exit_code").read_text() == "130\n"


def test_ray_that_does_not_come_up_is_no_success(tmp_path: Path) -> None:
    allocation = Allocation(tmp_path, ENDS)
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nexit 0\n")
    process = allocation.start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 4 and "Ray did not come up on all nodes" in output


@pytest.mark.parametrize(("restarts", "left"), [(0, "held"), (1, "")])
def test_the_lock_of_an_allocation_that_has_ended_is_taken_off(tmp_path: Path, restarts: int, left: str) -> None:
    allocation = Allocation(tmp_path, ENDS)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "lock").write_text("held")
    (tmp_path / "results" / "journal.jsonl").touch()
    output, _ = allocation.start(restarts=restarts).communicate(timeout=60)
    assert (tmp_path / "results" / "lock").read_text() == left
    assert output.rstrip().splitlines()[-1].endswith("--yes --resume")
