"""The reaper: one actor a node that ends what has to end there, proves it gone, and tells how a process died."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.launch.broker import NAMESPACE, call, find_broker
from raysweep.launch.node_folder import NodeFolder, abandoned_folders
from raysweep.trial import RankFailure
from raysweep.units import MIB
from raysweep.worker.build_folder import build_folder, turn_to_build

LOOK_EVERY_S = 2.0
GONE_WITHIN_S = 10.0
CALL_TIMEOUT_S = GONE_WITHIN_S + 50.0
ANSWER_WITHIN_S = 10.0
"""How long a node that works may take to say so."""
LOG_READ_BYTES = 4 * MIB
MARK = "RAYSWEEP_WORKER_OF"
"""Variable that holds the sweep's id in the environment of its workers and of all that they start."""
KERNEL_COUNTERS = "/proc/vmstat"


class Reaper:
    """Actor class; holds no CPU. Owns the sweep's folder on its node."""

    def __init__(self, *, sweep_id: str, node_id: str) -> None:
        self._sweep_id = sweep_id
        self._node_id = node_id
        self._folder = NodeFolder(sweep_id)
        self._lock = _owned(self._folder)
        self._memory_kills = memory_kills()
        threading.Thread(target=self._watch, daemon=True).start()

    def tidy(self) -> list[str]:
        """Remove what sweeps that are over left on this node; a line for each thing that a person may wonder about."""
        lines = []
        for folder in abandoned_folders():
            pids = marked(folder.sweep_id)
            end(pids)
            folder.remove()
            lines.append(f"an earlier sweep had left {folder.path} and {len(pids)} processes behind; they are gone")
        with contextlib.suppress(BlockingIOError), turn_to_build(build_folder(), wait=False) as stale:
            lines += [f"a killed build had left the lock {lock}, on which builds wait; it is gone" for lock in stale]
        return lines

    def end_workers(self) -> list[int]:
        """End every worker of the sweep on this node and all that they started; the processes still there after it."""
        return end(marked(self._sweep_id))

    def autopsy(self, pid: int, log_path: str) -> dict[str, Any]:
        """How a process of this node died: `exit_signal` where it was a fatal signal of its own making, whose stack
        goes to the process's log; `killed_for_memory` where the kernel has killed for memory since anyone last asked.
        """
        words = self._folder.last_words(pid)
        if words:
            with contextlib.suppress(OSError), Path(log_path).open("a") as log:
                log.write(f"\n{words.stack}\n")
        kills, before = memory_kills(), self._memory_kills
        self._memory_kills = kills
        return {
            "exit_signal": words.exit_signal if words else None,
            "killed_for_memory": words is None and kills > before,
        }

    def answer(self) -> list[str]:
        """The node's id: it can be reached, and works."""
        return [self._node_id]

    def read_log(self, path: str) -> bytes | None:
        """The last `LOG_READ_BYTES` of a log on this node; None where it is not there."""
        try:
            with open(path, "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_READ_BYTES))
                return log.read()
        except OSError:
            return None

    def _watch(self) -> None:
        """Every `LOOK_EVERY_S` seconds end the overdue ranks of this node; ends with the actor."""
        while True:
            time.sleep(LOOK_EVERY_S)
            # The broker comes up beside the reapers, and one that died is started again.
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                overdue = call(find_broker(self._sweep_id), "overdue_pids", self._node_id)
                # A rank that left long ago is still named; its number may be another process's by now.
                end(set(overdue) & set(marked(self._sweep_id)) if overdue else ())

    def close(self) -> list[int]:
        """End the workers and remove the sweep's folder; the processes still there after it."""
        left = self.end_workers()
        self._folder.remove()
        return left


def _owned(folder: NodeFolder) -> TextIO:
    """The lock of the sweep's folder; on a node that has come back, the reaper of its former life may yet hold it.

    Raises:
        BlockingIOError: when that does not end within `GONE_WITHIN_S` seconds.
    """
    limit_s = time.monotonic() + GONE_WITHIN_S
    while True:
        try:
            return folder.own()
        except BlockingIOError:
            if time.monotonic() > limit_s:
                raise
            time.sleep(0.2)


def marked(sweep_id: str) -> list[int]:
    """Processes of this node whose environment says that a sweep started them."""
    wanted = f"{MARK}={sweep_id}".encode()
    found = []
    for pid in psutil.pids():
        # Gone by now, or another user's.
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def end(pids: Iterable[int]) -> list[int]:
    """SIGKILL processes and their children; the ones still there after `GONE_WITHIN_S` seconds."""
    doomed = {each for pid in pids for each in _with_children(pid)}
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    limit_s = time.monotonic() + GONE_WITHIN_S
    while any(is_alive(pid) for pid in doomed) and time.monotonic() < limit_s:
        time.sleep(0.05)
    return sorted(pid for pid in doomed if is_alive(pid))


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


def memory_kills(counters: str = KERNEL_COUNTERS) -> int:
    """How many processes the kernel of this node has killed because memory had run out; 0 where it does not count."""
    try:
        pairs = (line.split() for line in Path(counters).read_text().splitlines())
        return next((int(count) for name, count in pairs if name == "oom_kill"), 0)
    except OSError:
        return 0


def start_reapers(sweep_id: str, known: Container[str] = ()) -> dict[str, Any]:
    """One reaper on each live node that is not known yet, already watching: node_id -> actor handle."""
    reapers = {}
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] not in known:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            actor = ray.remote(Reaper).options(
                name=_name(sweep_id, node["NodeID"]),
                namespace=NAMESPACE,
                num_cpus=0,
                max_concurrency=4,
                max_restarts=-1,
                scheduling_strategy=there,
            )
            reapers[node["NodeID"]] = actor.remote(sweep_id=sweep_id, node_id=node["NodeID"])
    return reapers


def ask_each(reapers: Iterable[Any], method: str, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
    """Everything that the reapers answer to a call that gives a list; a reaper whose node is lost has no answer."""
    asked = [getattr(reaper, method).remote() for reaper in reapers]
    # One limit for all: several lost nodes cost no more than one.
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=timeout_s) if asked else ([], [])
    answers: list[Any] = []
    for each in answered:
        with contextlib.suppress(ray.exceptions.RayError):
            answers += ray.get(each)
    return answers


def node_answers(sweep_id: str, node_id: str) -> bool:
    """Whether a node can be reached and works; Ray itself takes up to a minute to find that it does not."""
    try:
        reaper = ray.get_actor(_name(sweep_id, node_id), namespace=NAMESPACE)
    except ValueError:
        return False
    return bool(ask_each([reaper], "answer", ANSWER_WITHIN_S))


def bring_log(sweep_id: str, failure: RankFailure, folder: Path) -> Path | None:
    """Copy the log of a rank that failed on another node into a folder of this one.

    Where the folder has the log already, it is this node's, or the nodes share the folder.

    Returns:
        The copy; None where there is nothing to copy, or nobody to ask for it.
    """
    copy = folder / Path(failure.log_path).name
    if not failure.log_path or copy.exists():
        return None
    for node in ray.nodes():
        if node["Alive"] and node["NodeManagerAddress"] == failure.node:
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                reaper = ray.get_actor(_name(sweep_id, node["NodeID"]), namespace=NAMESPACE)
                content = ray.get(reaper.read_log.remote(failure.log_path), timeout=ANSWER_WITHIN_S)
                if content is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(content)
                    return copy
    return None


def find_reapers(sweep_id: str) -> list[Any]:
    """The reapers of all nodes that live."""
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            with contextlib.suppress(ValueError):  # the node joined after the sweep had begun
                found.append(ray.get_actor(_name(sweep_id, node["NodeID"]), namespace=NAMESPACE))
    return found


def autopsy_of(sweep_id: str, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """How a rank's process died, as its node's reaper knows it; None where nobody is left there to ask.

    Args:
        sweep_id: the sweep.
        facts: of the rank: node_id, pid and log_path.
    """
    try:
        reaper = ray.get_actor(_name(sweep_id, facts["node_id"]), namespace=NAMESPACE)
        found: dict[str, Any] = ray.get(reaper.autopsy.remote(facts["pid"], facts["log_path"]), timeout=CALL_TIMEOUT_S)
    except (ValueError, ray.exceptions.RayError):
        return None
    return found


def _name(sweep_id: str, node_id: str) -> str:
    return f"raysweep-reaper-{sweep_id}-{node_id}"
