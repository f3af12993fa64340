"""Runs the command line on tiny sweeps, for the tests that need real worker groups."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml

TINY = {
    "name": "tiny",
    "model": {"kind": "gpt", "blocks": 4, "hidden": 32, "heads": 2},
    "data": {"kind": "text", "path": "stdlib"},
    "sequence_length": 16,
    "precision": "bf16",
    "workers": {"count": 2, "resources_per_worker": {"CPU": 0.5}},
    "global_batch_size": 8,
    "memory_budget": "64MiB",
    "deepspeed": {"zero_optimization": {"reduce_bucket_size": 1e5, "stage3_prefetch_bucket_size": 1e5}},
    "space": {"zero_stage": [0, 1, 2, 3], "activation_checkpoint_interval": [0, 2], "micro_batch_size_per_gpu": [2]},
    "search": {"method": "grid"},
    "measure": {"measured_seconds": 0.2, "warmup_max_steps": 4, "deadline_seconds": 120},
    "environment": {"OMP_NUM_THREADS": 1},
}


def write_sweep(folder: Path, **changes: Any) -> Path:
    """A tiny sweep file; `changes` replace whole sections. Its results go to `folder/results`."""
    plain = {**TINY, **changes, "results": str(folder / "results")}
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


COMMAND = ("-m", "raysweep.cli.main")


class Run(subprocess.Popen[bytes]):
    """`raysweep run` as a user starts it, in a process of its own; what it prints goes to a file."""

    def __init__(
        self, path: Path, *options: str, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = path.parent / f"output-{time.monotonic_ns()}.txt"
        with self._log.open("wb") as log:
            # Like a terminal's foreground job a process group of its own: Ctrl-C reaches all of it.
            super().__init__(
                [sys.executable, *command, "run", str(path), *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=path.parent,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def output(self) -> str:
        """What was printed so far."""
        return self._log.read_text()


def start(path: Path, *options: str, **how: Any) -> Run:
    """Start a sweep."""
    return Run(path, *options, **how)


def run(path: Path, *options: str, timeout_s: float = 280) -> tuple[int, str]:
    """Exit code and output of a sweep."""
    process = start(path, *options)
    process.wait(timeout=timeout_s)
    return process.returncode, process.output()


def trials(folder: Path) -> list[dict[str, Any]]:
    """Rows of trials.parquet."""
    return list(pq.read_table(folder / "results" / "trials.parquet").to_pylist())


def measurements(folder: Path) -> list[dict[str, Any]]:
    """Rows of measurements.parquet, in the order of the launches."""
    return list(pq.read_table(folder / "results" / "measurements.parquet").to_pylist())


def selection(folder: Path) -> dict[str, Any]:
    """selection.json."""
    return dict(json.loads((folder / "results" / "selection.json").read_text()))


def wait_for_line(path: Path, text: str, *, count: int = 1, timeout_s: float = 120) -> None:
    """Wait until a file holds `text` at least `count` times."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if path.exists() and path.read_text().count(text) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} does not show {text!r} {count} times")


def worker_logs(folder: Path, rank: int) -> list[Path]:
    """Log files of a rank, oldest group first."""
    logs = (folder / "results" / "logs").glob(f"rank-{rank}-pid-*.log")
    return sorted(logs, key=lambda path: path.stat().st_ctime)


def pid_of(log: Path) -> int:
    """The process that wrote a rank's log."""
    return int(log.stem.rpartition("-")[2])


def descendants(pid: int) -> Iterator[psutil.Process]:
    """All living processes under a process."""
    try:
        yield from psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that still run."""
    running = set()
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                running.add(pid)
        except psutil.NoSuchProcess:
            continue
    return running


def kill(pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Send a signal."""
    os.kill(pid, signal_number)
