"""Keeps forked processes that trace one job after another; a process stays in the world that it joined."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from raysweep.serde import from_dict, to_dict
from raysweep.space import group_key
from raysweep.trace import RankTrace, TraceJob

World = tuple[Any, ...]
"""What jobs of one process have in common: rank, number of ranks, and keys that no two engines of a process share."""

Trace = Callable[[TraceJob], RankTrace]


@dataclass(slots=True)
class _Worker:
    world: World
    process: BaseProcess
    pipe: Connection
    index: int = -1
    ends_s: float = 0.0

    def hand(self, index: int, job: TraceJob, timeout_s: float) -> None:
        self.index, self.ends_s = index, time.monotonic() + timeout_s
        self.pipe.send(to_dict(job))

    def end(self) -> None:
        # Closing is not enough: processes that were forked later have this end of the pipe, too.
        with suppress(OSError):
            self.pipe.send(None)
        self.pipe.close()
        self.process.join()


def trace_all(
    jobs: Sequence[TraceJob], *, processes: int, timeout_s: float, make_tracer: Callable[[], Trace]
) -> Iterator[tuple[int, RankTrace]]:
    """Each job's index and trace, as they end.

    A process traces jobs of one world, because what the first one loads and learns need not be learnt again; after an
    error it is replaced.

    Args:
        jobs: what to trace.
        processes: how many at once.
        timeout_s: the most that one job may take.
        make_tracer: called in each process for the function that traces there.
    """
    waiting = list(enumerate(jobs))
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    while waiting or busy:
        while waiting and len(busy) < processes:
            worker, (index, job) = _next(idle, waiting, make_tracer)
            worker.hand(index, job, timeout_s)
            busy.append(worker)
        left_s = max(0.0, min(each.ends_s for each in busy) - time.monotonic())
        ready = wait([each.pipe for each in busy], timeout=left_s)
        for worker in list(busy):
            if worker.pipe in ready or time.monotonic() >= worker.ends_s:
                busy.remove(worker)
                trace = _answer(worker, jobs[worker.index].rank, timeout_s)
                if trace.error:
                    worker.process.kill()
                    worker.end()
                else:
                    idle.append(worker)
                yield worker.index, trace
    for worker in idle:
        worker.end()


def _world_of(job: TraceJob) -> World:
    return (job.rank, job.request.workload.world_size, group_key(job.request.candidate))


def _next(
    idle: list[_Worker], waiting: list[tuple[int, TraceJob]], make_tracer: Callable[[], Trace]
) -> tuple[_Worker, tuple[int, TraceJob]]:
    """A process and its next job: one that is there and has its world, or a new one in place of those that have not."""
    for worker in idle:
        fitting = next((each for each in waiting if _world_of(each[1]) == worker.world), None)
        if fitting is not None:
            idle.remove(worker)
            waiting.remove(fitting)
            return worker, fitting
    while idle:
        idle.pop().end()
    first = waiting.pop(0)
    return _start(_world_of(first[1]), make_tracer), first


def _start(world: World, make_tracer: Callable[[], Trace]) -> _Worker:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=_serve, args=(theirs, ours, make_tracer), daemon=True)
    process.start()
    theirs.close()
    return _Worker(world, process, ours)


def _answer(worker: _Worker, rank: int, timeout_s: float) -> RankTrace:
    try:
        if worker.pipe.poll():
            return from_dict(RankTrace, worker.pipe.recv())
        return RankTrace(rank=rank, error=f"not traced within {timeout_s:.0f} s")
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return RankTrace(rank=rank, error=f"its process ended with exit code {worker.process.exitcode}")


def _serve(pipe: Connection, parents: Connection, make_tracer: Callable[[], Trace]) -> None:
    """Trace what comes, until the other end is closed."""
    parents.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    trace = make_tracer()
    try:
        while (plain := pipe.recv()) is not None:
            pipe.send(to_dict(trace(from_dict(TraceJob, plain))))
    except (EOFError, OSError):
        pass
    # Neither the world that is not there nor anything else is to be tidied up at exit.
    sys.stderr.flush()
    os._exit(0)
