"""Command line of the local cluster: `sudo python cluster/local up --slots 2 2 2`, `exec`, `rate`, `link`, `down`."""

from __future__ import annotations

import argparse
import subprocess
import sys

import local_cluster


def main() -> int:
    """Run one command; its exit code."""
    arguments = _parser().parse_args()
    try:
        return int(arguments.do(arguments) or 0)
    except local_cluster.CannotBuild as error:
        print(f"local cluster: {error}", file=sys.stderr)
        return 4


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python cluster/local", description="Several Ray nodes on this machine.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    up = verbs.add_parser("up", help="make the nodes and start Ray on them")
    up.add_argument("--slots", type=int, nargs="+", default=[1, 1, 1], help="CPUs of each node; the first is the head")
    up.add_argument("--rate", type=float, help="Mbit/s of each node's link")
    up.add_argument("--dashboard", action="store_true", help="start the dashboard, which Ray Jobs need")
    up.set_defaults(do=_up)
    execute = verbs.add_parser("exec", help="run a command on a node, e.g. exec 0 raysweep check SWEEP")
    execute.add_argument("node", type=int)
    execute.add_argument("command", nargs=argparse.REMAINDER)
    execute.set_defaults(do=_exec)
    rate = verbs.add_parser("rate", help="limit the link of a node")
    rate.add_argument("node", type=int)
    rate.add_argument("megabit", type=float, help="Mbit/s each way; 0 lifts the limit")
    rate.set_defaults(do=_rate)
    link = verbs.add_parser("link", help="cut a node off, or connect it again")
    link.add_argument("node", type=int)
    link.add_argument("state", choices=["up", "down"])
    link.set_defaults(do=lambda given: local_cluster.find(given.name).set_link(given.node, up=given.state == "up"))
    down = verbs.add_parser("down", help="remove the nodes and all of their processes, also after a crash")
    down.set_defaults(do=lambda given: local_cluster.down(given.name))
    for verb in (up, execute, rate, link, down):
        verb.add_argument("--name", default="local", help="of the cluster: 1 to 6 small letters or digits")
    return parser


def _up(given: argparse.Namespace) -> None:
    cluster = local_cluster.up(given.name, len(given.slots))
    try:
        cluster.start_ray(given.slots, dashboard=given.dashboard)
        for index in range(len(given.slots) if given.rate else 0):
            cluster.limit_rate(index, given.rate)
    except BaseException:
        local_cluster.down(given.name)
        raise
    for index, (node, slots) in enumerate(zip(cluster.nodes, given.slots, strict=True)):
        role = "head" if index == 0 else "node"
        print(f"{role} {index}: {node.address}, {slots} CPUs, its /tmp is {node.tmp()}")
    print(f"Ray: {cluster.address}; the token is RAY_AUTH_TOKEN={cluster.nodes[0].token} with RAY_AUTH_MODE=token")


def _exec(given: argparse.Namespace) -> int:
    node = local_cluster.find(given.name).nodes[given.node]
    return subprocess.run(node.command(given.command), check=False).returncode


def _rate(given: argparse.Namespace) -> None:
    cluster = local_cluster.find(given.name)
    if given.megabit:
        cluster.limit_rate(given.node, given.megabit)
    else:
        cluster.lift_rate(given.node)


if __name__ == "__main__":
    sys.exit(main())
