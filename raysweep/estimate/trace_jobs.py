"""Traces jobs in processes of their own, forked from one that has loaded torch and DeepSpeed; run as a subprocess."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from raysweep.errors import RaysweepError
from raysweep.estimate.fake_engine import trace_rank, weigh_rank
from raysweep.serde import from_dict, to_dict
from raysweep.trace import RankTrace, TraceJob

LOADED_BY_FIRST_ENGINE = ("deepspeed.runtime.zero.muon.muon_optimizer",)
"""What DeepSpeed imports when it builds its first engine (torch's compiler, seconds), loaded once before the forks."""

UNTRACEABLE = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


@dataclass(slots=True)
class _Running:
    index: int
    process: BaseProcess
    answers: Connection
    ends_s: float


def trace_all(
    jobs: Sequence[TraceJob], *, processes: int, timeout_s: float, store: str | None = None
) -> Iterator[tuple[int, RankTrace]]:
    """Each job's index and trace, as they end; at most `processes` at once, each for at most `timeout_s`.

    With a `store` they are not traced but run, as ranks that meet there.
    """
    waiting = list(enumerate(jobs))[::-1]
    running: list[_Running] = []
    while waiting or running:
        while waiting and len(running) < processes:
            index, job = waiting.pop()
            running.append(_start(index, job, timeout_s, store))
        left_s = max(0.0, min(each.ends_s for each in running) - time.monotonic())
        ready = wait([each.answers for each in running], timeout=left_s)
        for each in list(running):
            if each.answers in ready or time.monotonic() >= each.ends_s:
                running.remove(each)
                yield each.index, _answer(each, jobs[each.index].rank, timeout_s)


def _start(index: int, job: TraceJob, timeout_s: float, store: str | None) -> _Running:
    fork = multiprocessing.get_context("fork")
    answers, answer = fork.Pipe(duplex=False)
    process = fork.Process(target=_trace, args=(job, answer, store), daemon=True)
    process.start()
    answer.close()
    return _Running(index, process, answers, time.monotonic() + timeout_s)


def _answer(each: _Running, rank: int, timeout_s: float) -> RankTrace:
    try:
        if each.answers.poll():
            return from_dict(RankTrace, each.answers.recv())
        each.process.kill()
        return RankTrace(rank=rank, error=f"not traced within {timeout_s:.0f} s")
    except EOFError:
        each.process.join()
        return RankTrace(rank=rank, error=f"its process ended with exit code {each.process.exitcode}")
    finally:
        each.process.join()
        each.answers.close()


def _trace(job: TraceJob, answer: Connection, store: str | None) -> None:
    try:
        trace = trace_rank(job) if store is None else weigh_rank(job, store=store)
    except Exception as error:
        # Whatever the model's code raises is an answer here.
        trace = RankTrace(rank=job.rank, error=_described(error), from_user_code=_is_of_user_code(error))
    answer.send(to_dict(trace))
    answer.close()
    # Neither the world that is not there nor anything else is to be tidied up at exit.
    sys.stderr.flush()
    os._exit(0)


def _described(error: Exception) -> str:
    text = " ".join(str(error).split())[:500]
    if isinstance(error, UNTRACEABLE):
        operator = str(getattr(error, "func", text))
        return f"{operator} has a result whose shape or value depends on numbers that a trace does not have"
    return text if isinstance(error, RaysweepError) else f"{type(error).__name__}: {text}"


def _is_of_user_code(error: Exception) -> bool:
    if isinstance(error, RaysweepError):
        return True
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    return not isinstance(error, UNTRACEABLE) and not any(
        part in innermost for part in ("/torch/", "/deepspeed/", "/raysweep/", "<")
    )


def main() -> None:
    """Answer each line of standard input with a line for each trace, and an empty one behind the last.

    A line asks (JSON) with `jobs`, `processes` and `timeout_s`; with `store` the jobs, which are then the ranks of one
    world, run for real. An answer (JSON) has the job's `index` and its `trace`.
    """
    # Whatever prints goes to standard error: standard output is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name in LOADED_BY_FIRST_ENGINE:
        with suppress(ImportError):
            importlib.import_module(name)
    # The forks' collector need not look through what the imports made.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        jobs = [from_dict(TraceJob, job) for job in asked.pop("jobs")]
        for index, trace in trace_all(jobs, **asked):
            print(json.dumps({"index": index, "trace": to_dict(trace)}), file=answers, flush=True)
        print(file=answers, flush=True)


if __name__ == "__main__":
    main()
