"""A node and a cluster of nodes on this machine: commands on them, Ray on them, their links slowed down or cut."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

RAY_PORT = 6379
AGENT_PORTS = tuple(
    f"--{name}-port={port}"
    for name, port in (("dashboard-agent-grpc", 52366), ("metrics-export", 52367), ("runtime-env-agent", 52368))
)
"""A raylet waits 15 s for ports that its agents choose and then ends, which on a busy machine is too short. Each node
has all ports to itself."""
START_ATTEMPTS = 2
SHOWN_LINES = 20


class CannotBuild(Exception):
    """The cluster cannot be made; the text says why and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a running cluster."""

    name: str
    address: str
    folder: str
    """Its folder on the machine; `tmp` inside is the node's /tmp."""
    link: str
    """The machine's end of its network link."""
    init_pid: int
    """Its process 1, as the machine numbers it."""
    token: str

    def tmp(self, *names: str) -> Path:
        """A path under the node's /tmp, as the machine sees it."""
        return Path(self.folder, "tmp", *names)

    def command(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        """What runs `arguments` on the node, in /tmp/work; the environment has nothing of the caller's but PATH."""
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": "/tmp/home",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        enter = ["nsenter", f"--target={self.init_pid}", "--net", "--mount", "--pid", "--uts", "--ipc", "--"]
        named = [f"{key}={value}" for key, value in variables.items()]
        return [*enter, "env", "-i", *named, "sh", "-c", 'cd /tmp/work && exec "$@"', "sh", *arguments]

    def run(
        self, *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node to its end."""
        command = self.command(arguments, environment)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if check and done.returncode:
            raise CannotBuild(f"{' '.join(arguments)} on {self.name}: {(done.stderr or done.stdout)[-2000:]}")
        return done

    def pids(self, word: str) -> list[int]:
        """Processes of the node, as the machine numbers them, whose command line has this word."""
        known = output("ip", "netns", "pids", self.name).split()
        return [int(pid) for pid in known if word in _command_line(int(pid))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A running cluster; node 0 is the head."""

    name: str
    nodes: tuple[Node, ...]

    @property
    def address(self) -> str:
        """Where Ray listens, once it is started."""
        return f"{self.nodes[0].address}:{RAY_PORT}"

    def start_ray(self, slots: Sequence[int], *, dashboard: bool = False) -> None:
        """Start Ray on every node, with so many CPUs each; the first is the head's, and the others join it at once."""
        self.start_node(0, slots[0], dashboard=dashboard)
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.start_node, range(1, len(slots)), slots[1:]))

    def start_node(self, index: int, slots: int, *, dashboard: bool = False) -> None:
        """Start Ray on one node."""
        node = self.nodes[index]
        place = ["--head", f"--port={RAY_PORT}"] if index == 0 else [f"--address={self.address}"]
        if index == 0:
            place += [f"--include-dashboard={str(dashboard).lower()}", "--dashboard-host=0.0.0.0"]
        limits = [f"--num-cpus={slots}", "--object-store-memory=100000000", "--disable-usage-stats", *AGENT_PORTS]
        script = "from ray.scripts.scripts import main; main()"
        start = [sys.executable, "-c", script, "start", f"--node-ip-address={node.address}", *place, *limits]
        # On a busy machine a raylet may end because the head does not answer in time.
        for attempt in range(START_ATTEMPTS):
            try:
                node.run(*start)
                return
            except (CannotBuild, subprocess.TimeoutExpired) as error:
                if attempt + 1 == START_ATTEMPTS:
                    raise CannotBuild(f"{error}\n{_last_words(node)}") from None
                self.end_ray(index)

    def limit_rate(self, index: int, megabit: float) -> None:
        """Let the link of a node carry so many Mbit/s each way (a token bucket)."""
        shape = ["root", "tbf", "rate", f"{megabit}mbit", "burst", "32kb", "latency", "400ms"]
        node = self.nodes[index]
        do("tc", "qdisc", "replace", "dev", node.link, *shape)
        do("ip", "netns", "exec", node.name, "tc", "qdisc", "replace", "dev", "eth0", *shape)

    def lift_rate(self, index: int) -> None:
        """Undo `limit_rate`."""
        node = self.nodes[index]
        do("tc", "qdisc", "del", "dev", node.link, "root")
        do("ip", "netns", "exec", node.name, "tc", "qdisc", "del", "dev", "eth0", "root")

    def set_link(self, index: int, *, up: bool) -> None:
        """Connect a node, or cut it off."""
        do("ip", "link", "set", self.nodes[index].link, "up" if up else "down")

    def set_pair(self, first: int, second: int, *, up: bool) -> None:
        """Connect two nodes, or let what they send to each other vanish while all other links work."""
        for here, there in ((first, second), (second, first)):
            on = ["ip", "netns", "exec", self.nodes[here].name, "ip", "neigh"]
            address = self.nodes[there].address
            if up:
                do(*on, "del", address, "dev", "eth0")
            else:  # a hardware address that nobody has
                do(*on, "replace", address, "lladdr", "02:00:00:00:00:00", "dev", "eth0", "nud", "permanent")

    def kill_raylet(self, index: int) -> None:
        """End Ray on a node as a crash would."""
        _kill(self.nodes[index].pids("/raylet/raylet"))

    def end_ray(self, index: int) -> None:
        """End every process of Ray's on a node, and its workers."""
        _kill(self.nodes[index].pids("/ray/") + self.nodes[index].pids("ray::"))


def _last_words(node: Node) -> str:
    """What Ray's own processes on a node logged of errors, without their stacks."""
    logs = [path for name in ("gcs_server", "raylet") for path in node.tmp("ray").glob(f"session_2*/logs/{name}.out")]
    lines = [f"{path.name}: {line}" for path in logs for line in path.read_text(errors="replace").splitlines()]
    return "\n".join([line for line in lines if re.search(r" [EFC] \d+ \d+\]|Check failed", line)][:SHOWN_LINES])


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def do(*command: str) -> None:
    """Run a command of the system.

    Raises:
        CannotBuild: with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuild(f"{' '.join(command)}: {done.stderr.strip()}")


def output(*command: str) -> str:
    """What a command of the system prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
