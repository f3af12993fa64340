"""Traces jobs in processes of their own, forked from one that has loaded torch and DeepSpeed; run as a subprocess."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from raysweep.errors import RaysweepError
from raysweep.estimate.fake_engine import trace_rank, weigh_rank
from raysweep.estimate.fake_world import LoneRank, join_fake_world
from raysweep.estimate.trace_pool import trace_all
from raysweep.serde import canonical_json, from_dict, to_dict
from raysweep.trace import RankTrace, TraceJob
from raysweep.worker.engine import clear_stage3_globals
from raysweep.worker.model import open_model

LOADED_BY_FIRST_ENGINE = ("deepspeed.runtime.zero.muon.muon_optimizer",)
"""What DeepSpeed imports when it builds its first engine (torch's compiler, seconds), loaded once before the forks."""

UNTRACEABLE = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


class _Tracer:
    """Traces one job after another in the world of the first; with a `store` it runs one, as a rank that meets there."""

    def __init__(self, store: str | None = None) -> None:
        self._store = store
        self._world: LoneRank | None = None

    def __call__(self, job: TraceJob) -> RankTrace:
        try:
            if self._store is not None:
                return weigh_rank(job, store=self._store)
            if self._world is None:
                self._world = join_fake_world(rank=job.rank, world_size=job.request.workload.world_size)
            return trace_rank(job, self._world)
        except Exception as error:
            # Whatever the model's code raises is an answer here.
            return RankTrace(rank=job.rank, error=_described(error), from_user_code=_is_of_user_code(error))
        finally:
            clear_stage3_globals()
            gc.collect()


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


def _load_transformers(jobs: Sequence[TraceJob]) -> None:
    """Import once what transformers needs for the jobs' models; what is wrong with them each trace says itself."""
    sections = {canonical_json(job.request.workload.model): job.request.workload.model for job in jobs}
    for section in sections.values():
        if section["kind"] == "hf":
            with suppress(Exception):
                open_model(section)


def main() -> None:
    """Answer each line of standard input with a line for each trace, and an empty one behind the last.

    A line asks (JSON) with `jobs`, `processes` and `timeout_s`; with `store` the jobs, which are then the ranks of one
    world, run for real. An answer (JSON) has the job's `index` and its `trace`.
    """
    # Whatever prints goes to standard error: standard output is for answers.
    answers = os.fdopen(os.dup(1), "w")
    # A clean exit ends the forks, which SIGTERM by itself would leave behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
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
        _load_transformers(jobs)
        tracer = partial(_Tracer, asked.pop("store"))
        for index, trace in trace_all(jobs, **asked, make_tracer=tracer):
            print(json.dumps({"index": index, "trace": to_dict(trace)}), file=answers, flush=True)
        print(file=answers, flush=True)


if __name__ == "__main__":
    main()
