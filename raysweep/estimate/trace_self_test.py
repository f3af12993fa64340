"""The start-up test of the trace: a model of two blocks, traced and really run on two ranks, must agree."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.estimate.facts_cache import cache_folder, write_cached
from raysweep.estimate.trace_cache import environment_key
from raysweep.estimate.trace_server import TraceServer
from raysweep.serde import sha256_of
from raysweep.trace import RankTrace, TraceJob
from raysweep.trial import LaunchRequest
from raysweep.workload import Workload

WORLD_SIZE = 2
TOLERANCE = 0.001
"""Share of a peak by which the two may differ."""
STAGES = (2, 3)


def self_test(server: TraceServer) -> str:
    """What is wrong with traces in this environment; empty where they agree with a run. A success is kept on disk.

    Raises:
        TraceServerDied: when the subprocess does.
    """
    file = cache_folder() / "trace_self_test" / f"{sha256_of(environment_key())}.json"
    try:
        if json.loads(file.read_text(encoding="utf-8")) == {"passed": True}:
            return ""
    except (OSError, ValueError):
        pass
    for stage in STAGES:
        jobs = [_job(stage, rank) for rank in range(WORLD_SIZE)]
        traced = _in_order(server, jobs, store=None)
        with tempfile.TemporaryDirectory(prefix="raysweep-self-test-") as folder:
            real = _in_order(server, jobs, store=str(Path(folder, "store")))
        failure = compared(traced, real)
        if failure:
            return f"the start-up test at ZeRO stage {stage} failed: {failure}"
    write_cached(file, {"passed": True})
    return ""


def _in_order(server: TraceServer, jobs: list[TraceJob], *, store: str | None) -> list[RankTrace]:
    answers = dict(server.trace(jobs, store=store))
    return [answers[index] for index in range(len(jobs))]


def compared(traced: list[RankTrace], real: list[RankTrace]) -> str:
    """Where traces of all ranks differ from a run of them; empty where they agree in every phase."""
    for trace, run in zip(traced, real, strict=True):
        if trace.error or run.error:
            return trace.error or f"the run: {run.error}"
        for phase, run_bytes in run.phase_peaks_bytes.items():
            traced_bytes = trace.phase_peaks_bytes[phase]
            if abs(traced_bytes - run_bytes) > TOLERANCE * run_bytes:
                return f"rank {run.rank} held {run_bytes} bytes in {phase}, and {traced_bytes} in the trace"
    return ""


def _job(stage: int, rank: int) -> TraceJob:
    """One rank of a GPT of two blocks, every second one checkpointed."""
    candidate = Candidate(zero_stage=stage, activation_checkpoint_interval=2, micro_batch_size_per_gpu=2)
    workload = Workload(
        model={
            "kind": "gpt",
            "blocks": 2,
            "hidden": 64,
            "heads": 2,
            "vocab_size": 256,
            "positions": 32,
            "tied": True,
        },
        shape=None,
        data={"kind": "synthetic"},
        sequence_length=32,
        precision="bf16",
        optimizer={},
        world_size=WORLD_SIZE,
    )
    sizes = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage, **dict.fromkeys(sizes, 20_000)},
    }
    window = MeasurementWindow(memory_pass_steps=4)
    request = LaunchRequest(candidate=candidate, workload=workload, ds_config=config, window=window)
    return TraceJob(request=request, rank=rank)
