"""Runs one tiny step of a sweep's model, traces the same step, and compares their operators; kept on disk."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.ds_config import render
from raysweep.estimate.facts_cache import cache_folder, write_cached
from raysweep.estimate.trace_cache import environment_key, model_sources
from raysweep.estimate.trace_server import TraceServer
from raysweep.fidelity import Fidelity, compare_steps
from raysweep.serde import from_dict, sha256_of, to_dict
from raysweep.sweep_file import Sweep
from raysweep.trace import TraceJob
from raysweep.trial import LaunchRequest

TINY_SEQUENCE = 32
MOST_PARAMETERS = 200_000_000
"""A larger model is not run: with its optimizer it would take more than 3 GiB of this machine."""


def fidelity_of(server: TraceServer, sweep: Sweep) -> Fidelity:
    """Whether traces of this sweep's model go the way of a run.

    Raises:
        TraceServerDied: when the subprocess does.
    """
    shape = sweep.workload.shape
    if shape is None or shape.parameters > MOST_PARAMETERS:
        return Fidelity(unknown=f"a model above {MOST_PARAMETERS:.0e} parameters is not run here")
    job = tiny_job(sweep)
    key = {"job": to_dict(job), "sources": model_sources(job), **environment_key()}
    file = cache_folder() / "trace_fidelity" / f"{sha256_of(key)}.json"
    try:
        return from_dict(Fidelity, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        pass
    (_, trace), *_ = server.trace([job])
    with tempfile.TemporaryDirectory(prefix="raysweep-fidelity-") as folder:
        (_, real), *_ = server.trace([job], store=str(Path(folder, "store")))
    found = compare_steps(real, trace)
    if not found.unknown:
        write_cached(file, to_dict(found))
    return found


def tiny_job(sweep: Sweep) -> TraceJob:
    """A step of one rank without ZeRO: two samples, of 32 tokens where they are tokens.

    A batch of one would spare the copies that a larger one needs.
    """
    candidate = Candidate(zero_stage=0, activation_checkpoint_interval=0, micro_batch_size_per_gpu=2)
    workload = replace(
        sweep.workload,
        shape=None,
        environment={},
        global_batch_size=None,
        world_size=1,
        device="cpu",
        data={"kind": "synthetic"},
        sequence_length=min(TINY_SEQUENCE, sweep.workload.sequence_length),
    )
    request = LaunchRequest(
        candidate=candidate,
        workload=workload,
        ds_config=render(candidate, workload=workload, base=sweep.base_ds_config),
        window=MeasurementWindow(memory_pass_steps=1),
    )
    return TraceJob(request=request, rank=0, keeps_operators=True)
