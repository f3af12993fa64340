"""Starts verbs of raysweep on the head of a cluster of several nodes, and reads what they leave there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from local_cluster import LocalCluster
from sweeps import TINY

ROOT = Path(__file__).parents[2]
THREE_WORKERS: dict[str, Any] = {
    "workers": {"count": 3, "resources_per_worker": {"CPU": 1}, "placement": "STRICT_SPREAD"},
    "global_batch_size": 12,
    "space": {"zero_stage": [0, 1, 2, 3], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [2]},
}
"""Parts of a sweep file: a worker a node, every stage."""


class OnHead:
    """A cluster, and commands on its head as a user gives them; the other nodes have no raysweep."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.head = cluster.nodes[0]
        self.addresses = [node.address for node in cluster.nodes]

    def write_sweep(self, name: str, **changes: Any) -> str:
        """A tiny sweep file in the head's working folder; its path there. Results go to `results/NAME` beside it."""
        plain = {**TINY, "name": name, "cluster": {"address": self.cluster.address}, **changes}
        self.head.tmp("work", f"{name}.yaml").write_text(yaml.safe_dump(plain))
        return f"/tmp/work/{name}.yaml"

    def start(self, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
        """Start a verb of raysweep; what it prints goes to a file."""
        command = self.head.command([sys.executable, "-m", "raysweep.cli.main", *arguments], {"PYTHONPATH": str(ROOT)})
        with output.open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def run(self, *arguments: str, output: Path, timeout_s: float = 240) -> tuple[int, str]:
        """Exit code and output of a verb."""
        process = self.start(*arguments, output=output)
        try:
            return process.wait(timeout_s), output.read_text()
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{arguments} takes longer than {timeout_s} s: {output.read_text()}") from None

    def restart_node(self, index: int, slots: int) -> None:
        """Start Ray on a node anew; what was left of it there is ended first."""
        self.cluster.end_ray(index)
        self.cluster.start_node(index, slots)

    def results(self, name: str, *parts: str) -> Path:
        """A path in a sweep's results, as this machine sees it."""
        return self.head.tmp("work", "results", name, *parts)

    def journal(self, name: str, kind: str = "measurement") -> list[dict[str, Any]]:
        """Lines of one kind, oldest first."""
        path = self.results(name, "journal.jsonl")
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row["record"] for row in rows if row["kind"] == kind]

    def wait_for_launches(
        self, name: str, count: int, process: subprocess.Popen[bytes], timeout_s: float = 300
    ) -> None:
        """Wait until so many launches are in the journal."""
        limit_s = time.monotonic() + timeout_s
        while len(self.journal(name)) < count:
            assert process.poll() is None, f"the sweep ended with {process.returncode}"
            assert time.monotonic() < limit_s, f"{len(self.journal(name))} of {count} launches"
            time.sleep(0.2)
