"""A cluster of several nodes on one machine, each with a network, mount, process and host name space of its own.

A node has an address, a link that can be slowed down or cut, and a private /tmp with its home and its results in it,
so that nothing is shared but the installed software. Tests and benchmarks use it; see README.md beside this file.
Needs root, `ip` and `tc` (iproute2), and `unshare` and `nsenter` (util-linux).
"""

from __future__ import annotations

import contextlib
import fcntl
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
from dataclasses import asdict
from pathlib import Path

from local_nodes import CannotBuild, LocalCluster, Node, do, output

STATE = Path("/var/tmp/raysweep-local")
"""Folder a cluster: what is known of it, and the private /tmp of each node."""
LOCK = Path("/var/tmp/raysweep-local.lock")
SUBNETS = ipaddress.ip_network("10.213.0.0/16")
READY_WITHIN_S = 20.0
MOST_NODES = 32
TRIAL = (
    "ip link add bridge type bridge && ip link add one type veth peer name other && "
    "tc qdisc add dev one root tbf rate 20mbit burst 32kb latency 400ms"
)
"""What a machine has to let root do in a network of its own; containers often do not."""
INSIDE = (
    "set -e; hostname {host}; mount --bind {hosts} /etc/hosts; mount --bind /dev/null /etc/resolv.conf; "
    "{software}mount --rbind {tmp} /tmp; "
    "mount -t tmpfs -o size={shm} tmpfs /dev/shm; {hide}"
    # An ignored SIGCHLD outlives exec: the kernel then buries orphans, for whom process 1 of a node is responsible.
    "trap '' CHLD; touch /tmp/.ready; exec sleep infinity"
)
"""What process 1 of a node does; all processes of the node end with it."""


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
    bridge, token = f"rs-{name}", secrets.token_hex(16)
    try:
        do("ip", "link", "add", bridge, "type", "bridge")
        with _alone():  # or two clusters that are made at once take the same network
            subnet = _free_subnet()
            do("ip", "addr", "add", f"{subnet[254]}/{subnet.prefixlen}", "dev", bridge)
        do("ip", "link", "set", bridge, "up")
        made = []
        for index in range(nodes):
            made.append(_make_node(name, index, subnet, token, hidden if index else (), seed_home or {}))
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
    for namespace in re.findall(rf"^(raysweep-{name}-\d+)\b", output("ip", "netns", "list"), re.MULTILINE):
        for pid in output("ip", "netns", "pids", namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        do("ip", "netns", "del", namespace)
    for link in re.findall(rf"^\d+: (rs-{name}(?:-\d+)?)[:@]", output("ip", "-o", "link"), re.MULTILINE):
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
    subnet: ipaddress.IPv4Network,
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
    do("ip", "netns", "add", namespace)
    do("ip", "link", "add", link, "type", "veth", "peer", "name", peer)
    do("ip", "link", "set", link, "master", f"rs-{name}", "up")
    do("ip", "link", "set", peer, "netns", namespace, "name", "eth0")
    do("ip", "-n", namespace, "addr", "add", f"{subnet[index + 1]}/{subnet.prefixlen}", "dev", "eth0")
    for device in ("eth0", "lo"):
        do("ip", "-n", namespace, "link", "set", device, "up")
    # Ray finds its own address by the way to a public one, so there is a way; nothing is ever sent there.
    do("ip", "-n", namespace, "route", "add", "default", "via", str(subnet[254]))
    hosts = folder / "hosts"
    # The own name as many distributions have it: what gloo is left to find by it is of no use to another node. The
    # others have names here because no name server is: torch looks up every address, and would wait at each start.
    others = "".join(f"{subnet[each + 1]} {name}-{each}.cluster\n" for each in range(MOST_NODES))
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}-{index}\n{others}")
    hide = "".join(f"mount -t tmpfs -o size=64k tmpfs '{path}'; " for path in hidden)
    software = "".join(f"mkdir -p '{tmp}/{path}'; mount --bind '/tmp/{path}' '{tmp}/{path}'; " for path in _below_tmp())
    script = INSIDE.format(host=f"{name}-{index}", hosts=hosts, software=software, tmp=tmp, shm="2g", hide=hide)
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
        address=str(subnet[index + 1]),
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
    tried = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "sh", "-c", TRIAL]
    refused = subprocess.run(tried, capture_output=True, text=True, check=False)
    if refused.returncode:
        raise CannotBuild(f"root may not make networks of its own here: {refused.stderr.strip()}")


def _below_tmp() -> list[str]:
    """Folders of the installed software under /tmp, relative to it; a node, whose /tmp is its own, needs them there."""
    folders = [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[2]]
    return sorted({str(folder.relative_to("/tmp")) for folder in folders if folder.is_relative_to("/tmp")})


@contextmanager
def _alone() -> Iterator[None]:
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _free_subnet() -> ipaddress.IPv4Network:
    taken = output("ip", "-o", "-4", "addr")
    for subnet in SUBNETS.subnets(new_prefix=24):
        if f" {subnet[254]}/" not in taken:
            return subnet
    raise CannotBuild(f"every network of {SUBNETS} is in use")
