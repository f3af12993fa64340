"""Starts a local Ray or joins an existing one, and checks that it has room for the workers."""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray

from raysweep.errors import ConfigError, PreflightError

JOIN_TIMEOUT_S = 10


@contextmanager
def ray_session(*, address: str | None, environment: Mapping[str, str]) -> Iterator[None]:
    """A connection to Ray for the length of a sweep: a local one of our own, or the cluster at `address`.

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
    if shlex.quote(sys.executable) != sys.executable:
        # Ray puts the interpreter's path into a shell command without quotes; a space in it would end every worker.
        options["runtime_env"]["py_executable"] = shlex.quote(sys.executable)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise PreflightError(message=f"cannot join Ray at {address or 'this machine'}: {error}") from None
    # Ray puts a handler of its own over the caller's, which ends the process without a word.
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()


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


def check_capacity(*, world_size: int, resources_per_worker: Mapping[str, float]) -> None:
    """Refuse more workers than the cluster could ever hold, instead of waiting without a word.

    Raises:
        ConfigError: with what was asked and what each node has.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    slots = {node["NodeManagerAddress"]: _slots(node["Resources"], resources_per_worker) for node in nodes}
    available = sum(slots.values())
    if available >= world_size:
        return
    wanted = ", ".join(f"{amount:g} {name}" for name, amount in resources_per_worker.items())
    table = "; ".join(
        f"{node['NodeManagerAddress']}: "
        + ", ".join(f"{node['Resources'].get(name, 0):g} {name}" for name in resources_per_worker)
        for node in nodes
    )
    raise ConfigError(
        key="workers.count",
        value=world_size,
        rule=f"asked: {world_size} workers of {wanted} each; available: {available} ({table})",
        nearest=available or None,
    )


def _slots(resources: Mapping[str, float], per_worker: Mapping[str, float]) -> int:
    return min(
        (math.floor(resources.get(name, 0) / amount) for name, amount in per_worker.items() if amount > 0), default=0
    )
