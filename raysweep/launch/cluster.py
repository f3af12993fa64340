"""Starts a local Ray or joins an existing one, and checks that it has room for the workers."""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources

from raysweep.errors import ConfigError, PreflightError

JOIN_TIMEOUT_S = 10
LOOK_EVERY_S = 2.0
SAY_EVERY_S = 10.0


@contextmanager
def ray_session(
    *, address: str | None, environment: Mapping[str, str], code: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """A connection to Ray for the length of a sweep: a local one of our own, or the cluster at `address`.

    Args:
        address: of a running cluster; None for a local one.
        environment: variables of every process of the sweep.
        code: what the nodes of a running cluster are sent, see `code_for_nodes`.

    Raises:
        PreflightError: when there is no cluster at `address`, or it refuses us.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    options: dict[str, Any] = {
        "address": address or "local",
        "namespace": "raysweep",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": dict(environment)},
    }
    if address is None:
        options["include_dashboard"] = False
        # Ray makes its workers give way to every other process (niceness 15), which is no way to measure their speed.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Workers started in advance would lack the environment of ours, so that nothing could run in them.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    else:
        _check_listening(address)
        options["runtime_env"] |= code or {}
        # In a job that was submitted to Ray, what we name takes the place of what the job named; the rest stays.
        os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
    if shlex.quote(sys.executable) != sys.executable:
        # Ray puts the interpreter's path into a shell command without quotes; a space in it would end every worker.
        options["runtime_env"]["py_executable"] = shlex.quote(sys.executable)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    _init(options, place=address or "this machine")
    # Ray puts a handler of its own over the caller's, which ends the process without a word.
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()


def _init(options: Mapping[str, Any], *, place: str) -> None:
    for last in (False, True):
        try:
            ray.init(**options)
            return
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise PreflightError(message=f"cannot join Ray at {place}: {error}") from None
        except Exception as error:
            # A bare one is Ray's for a node that is not up within 30 s; on a busy machine the second one may be.
            if type(error) is not Exception:
                raise
            if last:
                raise PreflightError(message=f"cannot start Ray on {place}: {error}") from None


def _check_listening(address: str) -> None:
    """Ray would try for minutes to reach an address where nobody listens.

    Raises:
        PreflightError: when no connection is made; nothing is checked for `auto`, which Ray itself resolves.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=JOIN_TIMEOUT_S).close()
    except OSError as error:
        raise PreflightError(message=f"cannot join Ray at {address}: {error.strerror or error}") from None


def slots_by_node(resources_per_worker: Mapping[str, float]) -> dict[str, int]:
    """How many workers each live node could hold: address -> slots, nodes without one included."""
    return {
        node["NodeManagerAddress"]: _slots(node["Resources"], resources_per_worker)
        for node in ray.nodes()
        if node["Alive"]
    }


def usable_slots(slots: Iterable[int], placement: str) -> int:
    """How many workers of one group fit at once, by the placement that Ray is asked for."""
    counts = list(slots)
    if placement == "STRICT_SPREAD":
        return sum(count > 0 for count in counts)
    if placement == "STRICT_PACK":
        return max(counts, default=0)
    return sum(counts)


def check_capacity(
    *, world_size: int, resources_per_worker: Mapping[str, float], placement: str = "PACK"
) -> dict[str, int]:
    """Refuse more workers than the cluster could ever hold, instead of waiting without a word; the slots of each node.

    Raises:
        ConfigError: with what was asked and what each node has.
    """
    slots = slots_by_node(resources_per_worker)
    available = usable_slots(slots.values(), placement)
    if available >= world_size:
        return slots
    wanted = ", ".join(f"{amount:g} {name}" for name, amount in resources_per_worker.items())
    table = "; ".join(
        f"{node['NodeManagerAddress']}: "
        + ", ".join(f"{node['Resources'].get(name, 0):g} {name}" for name in resources_per_worker)
        for node in ray.nodes()
        if node["Alive"]
    )
    lost = lost_nodes()
    gone = f"; lost nodes: {', '.join(lost)}" if lost else ""
    by = "" if available == sum(slots.values()) else f" by placement {placement}, of {sum(slots.values())} slots"
    raise ConfigError(
        key="workers.count",
        value=world_size,
        rule=f"asked: {world_size} workers of {wanted} each; available: {available}{by} ({table}{gone})",
        nearest=available or None,
    )


def share_nodes(
    slots: Mapping[str, int], *, groups: int, world_size: int, placement: str
) -> tuple[tuple[str, ...], ...]:
    """Nodes for each of several worker groups, none of them in two: groups that share one would slow each other down.

    A group begins with the largest node that is left, and ends with the smallest that completes it. What no group needs
    is dealt out where workers are to be spread.

    Args:
        slots: address -> workers that the node can hold.
        groups: how many.
        world_size: workers of each.
        placement: as Ray is asked for it.

    Raises:
        ConfigError: when the nodes are too few, with the most groups that they can be shared by.
    """
    left = {node: count for node, count in slots.items() if count > 0}
    made: list[tuple[str, ...]] = []
    while len(made) < groups:
        group: list[str] = []
        while usable_slots([slots[node] for node in group], placement) < world_size and left:
            by_size = sorted(left, key=lambda node: (left[node], node))
            completing = [
                node
                for node in by_size
                if usable_slots([slots[each] for each in (*group, node)], placement) >= world_size
            ]
            group.append(completing[0] if completing else by_size[-1])
            del left[group[-1]]
        if usable_slots([slots[node] for node in group], placement) < world_size:
            table = ", ".join(f"{node}: {count}" for node, count in sorted(slots.items()))
            raise ConfigError(
                key="workers.concurrent_groups",
                value=groups,
                rule=f"a group of {world_size} workers ({placement}) has nodes of its own; slots of the nodes: {table}",
                nearest=len(made) or None,
            )
        made.append(tuple(sorted(group)))
    if placement == "SPREAD":
        made = [(*group, *sorted(left)[number::groups]) for number, group in enumerate(made)]
    return tuple(made)


def wait_for_capacity(
    *,
    world_size: int,
    groups: int = 1,
    resources_per_worker: Mapping[str, float],
    placement: str,
    limit_s: float,
    note: Callable[[str], None],
) -> dict[str, int]:
    """`check_capacity`, on a cluster that grows: nodes are asked for, and waited for until the limit.

    Args:
        world_size: workers of a group.
        groups: worker groups that run at the same time.
        resources_per_worker: of each.
        placement: as Ray is asked for it.
        limit_s: 0 for a cluster that does not grow.
        note: told every `SAY_EVERY_S` seconds what is there, and when the wait ends.

    Raises:
        ConfigError: when there is not room for the workers by then.
    """
    began_s, said_s = time.monotonic(), float("-inf")
    while True:
        left_s = began_s + limit_s - time.monotonic()
        slots = slots_by_node(resources_per_worker)
        if left_s <= 0 or _have_room(slots, groups=groups, world_size=world_size, placement=placement):
            break
        wanted = world_size * groups
        if said_s == float("-inf"):
            request_resources(bundles=[dict(resources_per_worker)] * wanted)
        if time.monotonic() - said_s >= SAY_EVERY_S:
            said_s = time.monotonic()
            available = usable_slots(slots.values(), placement) if groups == 1 else sum(slots.values())
            note(f"waiting for nodes: {available} of {wanted} slots are there (given up in {left_s:.0f} s)")
        time.sleep(min(LOOK_EVERY_S, max(left_s, 0.0)))
    return check_capacity(world_size=world_size, resources_per_worker=resources_per_worker, placement=placement)


def _have_room(slots: Mapping[str, int], *, groups: int, world_size: int, placement: str) -> bool:
    try:
        share_nodes(slots, groups=groups, world_size=world_size, placement=placement)
    except ConfigError:
        return False
    return True


def describe_placement(nodes_of_ranks: Sequence[str], slots: Mapping[str, int]) -> str:
    """Where the workers are, and which slots stay idle: `6 workers: 4 on n1, 2 on n2; no slot is idle`."""
    used = Counter(nodes_of_ranks)
    where = ", ".join(f"{count} on {node}" for node, count in sorted(used.items()))
    idle = {node: count - used[node] for node, count in sorted(slots.items()) if count > used[node]}
    left = ", ".join(f"{count} on {node}" for node, count in idle.items())
    return f"{len(nodes_of_ranks)} workers: {where}; " + (f"idle slots: {left}" if left else "no slot is idle")


def lost_nodes() -> list[str]:
    """Addresses of nodes that were there and are not any more."""
    alive = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return sorted({node["NodeManagerAddress"] for node in ray.nodes()} - alive)


def _slots(resources: Mapping[str, float], per_worker: Mapping[str, float]) -> int:
    return min(
        (math.floor(resources.get(name, 0) / amount) for name, amount in per_worker.items() if amount > 0), default=0
    )
