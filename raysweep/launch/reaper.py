"""The reaper: one actor a node that kills what is past its deadline, and proves at the end that nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.launch.broker import find_broker

LOOK_EVERY_S = 2.0
GONE_WITHIN_S = 10.0


class Reaper:
    """Actor class; holds no CPU."""

    def __init__(self, *, sweep_id: str, node_id: str) -> None:
        self._sweep_id = sweep_id
        self._node_id = node_id

    def watch(self) -> None:
        """Every `LOOK_EVERY_S` seconds kill the overdue ranks of this node; ends with the actor."""
        broker = find_broker(self._sweep_id)
        while True:
            time.sleep(LOOK_EVERY_S)
            self.kill(ray.get(broker.overdue_pids.remote(self._node_id), timeout=60))

    def kill(self, pids: list[int]) -> list[int]:
        """SIGKILL processes and their children; the ones still there after `GONE_WITHIN_S` seconds."""
        doomed = [child for pid in pids for child in _with_children(pid)]
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + GONE_WITHIN_S
        while any(is_alive(pid) for pid in doomed) and time.monotonic() < end:
            time.sleep(0.05)
        return [pid for pid in doomed if is_alive(pid)]


def _with_children(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def start_reapers(sweep_id: str) -> list[Any]:
    """One reaper on each live node, already watching."""
    reapers = []
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            actor = ray.remote(Reaper).options(num_cpus=0, max_concurrency=4, scheduling_strategy=there)
            reaper = actor.remote(sweep_id=sweep_id, node_id=node["NodeID"])
            reaper.watch.remote()
            reapers.append(reaper)
    return reapers
