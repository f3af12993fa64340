"""`raysweep submit` and `raysweep jobs` as a user types them, on a machine that is not one of the cluster's nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from on_head import ROOT
from sweeps import TINY

# Two candidates that fit, nothing confirmed: such a sweep ends with code 5.
SHORT = {
    **TINY,
    "space": {"zero_stage": [0, 1], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [2]},
    "search": {"method": "grid", "confirm": False},
}
LONG = {**SHORT, "space": {**SHORT["space"], "zero_stage": [0, 1, 2], "activation_checkpoint_interval": [0, 1, 2]}}


class Client:
    """A folder of a user's, the place where sweeps are sent from there, and the environment."""

    def __init__(self, folder: Path, *place: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._place = place
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}

    def write_sweep(self, name: str, plain: Mapping[str, Any], **changes: Any) -> str:
        """A sweep file in the folder; its name."""
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump({**plain, "name": name, **changes}))
        return f"{name}.yaml"

    def start(self, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command; both streams go to one pipe."""
        return subprocess.Popen(
            [sys.executable, "-m", "raysweep.cli.main", *words, *self._place],
            cwd=self.folder,
            env={**self._environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = 280) -> tuple[int, str]:
        """Exit code and output of a command."""
        process = self.start(*words, environment=environment)
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output


def launches(journal: Path) -> list[dict[str, Any]]:
    """The measurements that a journal holds so far."""
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row["record"] for row in rows if row["kind"] == "measurement"]


def wait_until(what: Callable[[], object], *, said: Callable[[], object], every_s: float = 0.2) -> None:
    """Wait until something holds, up to five minutes."""
    limit_s = time.monotonic() + 300
    while not what():
        assert time.monotonic() < limit_s, said()
        time.sleep(every_s)


def wait_for_code(client: Client, code: int, job: str) -> None:
    """Wait until `jobs status` exits with this code; each time is a process of its own, so that is not asked often."""
    wait_until(
        lambda: client.run("jobs", "status", job)[0] == code, said=lambda: client.run("jobs", "logs", job), every_s=3
    )
