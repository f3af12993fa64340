"""A cluster of several nodes on one machine, each with a network, mount, process and host name space of its own.

A node has an address, a link that can be slowed down or cut, and a private /tmp with its home and its results in it,
so that nothing is shared but the installed software. Tests and benchmarks use it; see README.md beside this file.
Needs root, `ip` and `tc` (iproute2), and `unshare` and `nsenter` (util-linux).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

STATE = Path("/var/tmp/raysweep-local")
"""Folder a cluster: what is known of it, and the private /tmp of each node."""
SUBNETS = ipaddress.ip_network("10.213.0.0/16")
RAY_PORT = 6379
READY_WITHIN_S = 20.0
INSIDE = (
    "set -e; hostname {host}; mount --bind {hosts} /etc/hosts; mount --bind {tmp} /tmp; "
    "mount -t tmpfs -o size={shm} tmpfs /dev/shm; {hide}"
    # An ignored SIGCHLD outlives exec: the kernel then buries orphans, for whom process 1 of a node is responsible.
    "trap '' CHLD; touch /tmp/.ready; exec sleep infinity"
)
"""What process 1 of a node does; all processes of the node end with it."""


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
        """Processes of the node, as the machine numbers them, whose program has this name."""
        known = _output("ip", "netns", "pids", self.name).split()
        return [int(pid) for pid in known if _program(int(pid)) == word]


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
        """Start Ray on every node, with so many CPUs each; the first is the head's."""
        for index, count in enumerate(slots):
            self.start_node(index, count, dashboard=dashboard)

    def start_node(self, index: int, slots: int, *, dashboard: bool = False) -> None:
        """Start Ray on one node."""
        node = self.nodes[index]
        place = ["--head", f"--port={RAY_PORT}"] if index == 0 else [f"--address={self.address}"]
        if index == 0:
            place += [f"--include-dashboard={str(dashboard).lower()}", "--dashboard-host=0.0.0.0"]
        limits = [f"--num-cpus={slots}", "--object-store-memory=100000000", "--disable-usage-stats"]
        script = "from ray.scripts.scripts import main; main()"
        start = [sys.executable, "-c", script, "start", f"--node-ip-address={node.address}", *place, *limits]
        try:
            node.run(*start)
        except CannotBuild as error:
            raise CannotBuild(f"{error}\n{_last_words(node)}") from None

    def limit_rate(self, index: int, megabit: float) -> None:
        """Let the link of a node carry so many Mbit/s each way (a token bucket)."""
        shape = ["root", "tbf", "rate", f"{megabit}mbit", "burst", "32kb", "latency", "400ms"]
        node = self.nodes[index]
        _do("tc", "qdisc", "replace", "dev", node.link, *shape)
        _do("ip", "netns", "exec", node.name, "tc", "qdisc", "replace", "dev", "eth0", *shape)

    def lift_rate(self, index: int) -> None:
        """Undo `limit_rate`."""
        node = self.nodes[index]
        _do("tc", "qdisc", "del", "dev", node.link, "root")
        _do("ip", "netns", "exec", node.name, "tc", "qdisc", "del", "dev", "eth0", "root")

    def set_link(self, index: int, *, up: bool) -> None:
        """Connect a node, or cut it off."""
        _do("ip", "link", "set", self.nodes[index].link, "up" if up else "down")

    def set_pair(self, first: int, second: int, *, up: bool) -> None:
        """Connect two nodes, or let what they send to each other vanish while all other links work."""
        for here, there in ((first, second), (second, first)):
            on = ["ip", "netns", "exec", self.nodes[here].name, "ip", "neigh"]
            address = self.nodes[there].address
            if up:
                _do(*on, "del", address, "dev", "eth0")
            else:  # a hardware address that nobody has
                _do(*on, "replace", address, "lladdr", "02:00:00:00:00:00", "dev", "eth0", "nud", "permanent")

    def kill_raylet(self, index: int) -> None:
        """End Ray on a node as a crash would."""
        for pid in self.nodes[index].pids("raylet"):
            os.kill(pid, signal.SIGKILL)


def up(
    name: str, nodes: int, *, hidden: Sequence[str] = (), seed_home: Mapping[str, str] | None = None
) -> LocalCluster:
    """Make a cluster without Ray; what an earlier one of this name left is removed first.

    Args:
        name: up to 6 letters or digits.
        nodes: how many.
        hidden: folders that every node but the head finds empty, e.g. of a package that is not installed there.
        seed_home: path under each node's home -> folder that is copied there, e.g. operators that are built already.

    Raises:
        CannotBuild: when the machine does not let us.
    """
    check_able(name)
    down(name)
    bridge, subnet, token = f"rs-{name}", _free_subnet(), secrets.token_hex(16)
    try:
        _do("ip", "link", "add", bridge, "type", "bridge")
        _do("ip", "addr", "add", f"{subnet[254]}/{subnet.prefixlen}", "dev", bridge)
        _do("ip", "link", "set", bridge, "up")
        made = []
        for index in range(nodes):
            address = f"{subnet[index + 1]}/{subnet.prefixlen}"
            made.append(
                _make_node(name, index, address, str(subnet[254]), token, hidden if index else (), seed_home or {})
            )
        cluster = LocalCluster(name=name, nodes=tuple(made))
        (STATE / name / "cluster.json").write_text(json.dumps([asdict(node) for node in made]))
    except BaseException:
        down(name)
        raise
    return cluster


def find(name: str) -> LocalCluster:
    """A cluster that is up.

    Raises:
        CannotBuild: when there is none of this name.
    """
    try:
        plain = json.loads((STATE / name / "cluster.json").read_text())
    except FileNotFoundError:
        raise CannotBuild(f"no cluster {name!r} is up; there are: {', '.join(names()) or 'none'}") from None
    return LocalCluster(name=name, nodes=tuple(Node(**node) for node in plain))


def names() -> list[str]:
    """Clusters that are up, or of which something is left."""
    return sorted(path.name for path in STATE.glob("*"))


def down(name: str) -> None:
    """Remove a cluster with all of its processes, or what a crash left of one. Nothing else is touched."""
    for namespace in re.findall(rf"^(raysweep-{name}-\d+)\b", _output("ip", "netns", "list"), re.MULTILINE):
        for pid in _output("ip", "netns", "pids", namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _do("ip", "netns", "del", namespace)
    for link in re.findall(rf"^\d+: (rs-{name}(?:-\d+)?)[:@]", _output("ip", "-o", "link"), re.MULTILINE):
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)  # may go with its peer
    shutil.rmtree(STATE / name, ignore_errors=True)


@contextmanager
def running(name: str, slots: Sequence[int], **how: object) -> Iterator[LocalCluster]:
    """A cluster with Ray on every node, for the length of a block; `slots` are the CPUs of each node."""
    dashboard = bool(how.pop("dashboard", False))
    cluster = up(name, len(slots), **how)  # type: ignore[arg-type]
    try:
        cluster.start_ray(slots, dashboard=dashboard)
        yield cluster
    finally:
        down(name)


def _make_node(
    name: str,
    index: int,
    address: str,
    gateway: str,
    token: str,
    hidden: Sequence[str],
    seed_home: Mapping[str, str],
) -> Node:
    namespace, link, peer = f"raysweep-{name}-{index}", f"rs-{name}-{index}", f"rs-{name}-{index}p"
    folder = STATE / name / f"node-{index}"
    tmp = folder / "tmp"
    for path in (tmp, tmp / "home", tmp / "work"):
        path.mkdir(parents=True)
    tmp.chmod(0o1777)
    for target, source in seed_home.items():
        shutil.copytree(source, tmp / "home" / target, symlinks=True)
    _do("ip", "netns", "add", namespace)
    _do("ip", "link", "add", link, "type", "veth", "peer", "name", peer)
    _do("ip", "link", "set", link, "master", f"rs-{name}", "up")
    _do("ip", "link", "set", peer, "netns", namespace, "name", "eth0")
    _do("ip", "-n", namespace, "addr", "add", address, "dev", "eth0")
    for device in ("eth0", "lo"):
        _do("ip", "-n", namespace, "link", "set", device, "up")
    # Ray finds its own address by the way to a public one, so there is a way; nothing is ever sent there.
    _do("ip", "-n", namespace, "route", "add", "default", "via", gateway)
    hosts = folder / "hosts"
    # As many distributions have it: what gloo is left to find by the host's name is of no use to another node.
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}-{index}\n")
    hide = "".join(f"mount -t tmpfs -o size=64k tmpfs '{path}'; " for path in hidden)
    script = INSIDE.format(host=f"{name}-{index}", hosts=hosts, tmp=tmp, shm="2g", hide=hide)
    own = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc"]
    keeper = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{namespace}", *own, "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=(folder / "init.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Node(
        name=namespace,
        address=address.partition("/")[0],
        folder=str(folder),
        link=link,
        init_pid=_init_of(keeper, tmp / ".ready", folder / "init.log"),
        token=token,
    )


def _init_of(keeper: subprocess.Popen[bytes], ready: Path, log: Path) -> int:
    """Process 1 of a node, once its mounts are there."""
    limit_s = time.monotonic() + READY_WITHIN_S
    while not ready.exists():
        if keeper.poll() is not None or time.monotonic() > limit_s:
            raise CannotBuild(f"a node cannot be made: {log.read_text().strip() or 'not ready in time'}")
        time.sleep(0.02)
    return int(Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()[0])


def check_able(name: str) -> None:
    """Whether this machine and user can have a cluster of this name.

    Raises:
        CannotBuild: with what lacks.
    """
    if not re.fullmatch(r"[a-z0-9]{1,6}", name):
        raise CannotBuild(f"{name!r} is no name of a cluster: 1 to 6 small letters or digits")
    if os.geteuid():
        raise CannotBuild("a cluster of name spaces needs root: run this as root, or with sudo")
    lacking = [tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool) is None]
    if lacking:
        raise CannotBuild(f"not installed: {', '.join(lacking)} (packages iproute2 and util-linux)")
    hidden = [path for path in (sys.prefix, sys.base_prefix, str(Path(__file__).resolve())) if path.startswith("/tmp/")]
    if hidden:
        raise CannotBuild(f"{hidden[0]} lies under /tmp, which every node has of its own; move it elsewhere")


def _free_subnet() -> ipaddress.IPv4Network:
    taken = _output("ip", "-o", "-4", "addr")
    for subnet in SUBNETS.subnets(new_prefix=24):
        if f" {subnet[254]}/" not in taken:
            return subnet
    raise CannotBuild(f"every network of {SUBNETS} is in use")


def _last_words(node: Node) -> str:
    """The ends of the logs of Ray's own processes on a node."""
    logs = [path for name in ("gcs_server", "raylet") for path in node.tmp("ray").glob(f"session_2*/logs/{name}.*")]
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in logs)


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuild(f"{' '.join(command)}: {done.stderr.strip()}")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
