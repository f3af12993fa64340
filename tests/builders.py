"""Valid nouns of a small sweep, for tests that change one field each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from results_builders import completed, figures

from raysweep.activations import ActivationProfile, Line, Moment, Passes, Run
from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.ds_config import prepare_base, render
from raysweep.measurement import Figures, RankReport
from raysweep.trial import LaunchRequest, Measurement
from raysweep.workload import Workload, gpt_shape

SMALL_BUCKETS = {
    "reduce_bucket_size": 100_000,
    "allgather_bucket_size": 100_000,
    "stage3_prefetch_bucket_size": 100_000,
    "stage3_param_persistence_threshold": 1000,
}
SHORT_WINDOW = MeasurementWindow(warmup_min_steps=1, warmup_max_steps=1, measured_steps=2, measured_s=0.0)
SWEEP = {
    "name": "tiny",
    "model": {"kind": "gpt", "blocks": 4, "hidden": 32, "heads": 2},
    "sequence_length": 16,
    "workers": {"count": 2},
    "global_batch_size": 8,
    "memory_budget": "64MiB",
    "deepspeed": {"zero_optimization": SMALL_BUCKETS},
    "space": {
        "zero_stage": [0, 1, 2, 3],
        "activation_checkpoint_interval": [0, 2],
        "micro_batch_size_per_gpu": [1, 2],
    },
    "search": {"method": "grid"},
}


def make_candidate(**changes: Any) -> Candidate:
    """Stage 2, no activation checkpointing, micro-batch 2."""
    return Candidate(**{"zero_stage": 2, "activation_checkpoint_interval": 0, "micro_batch_size_per_gpu": 2} | changes)


def make_workload(**changes: Any) -> Workload:
    """A GPT of 4 blocks and hidden 32 on 2 workers, in bf16."""
    return Workload(
        **{
            "model": {
                "kind": "gpt",
                "blocks": 4,
                "hidden": 32,
                "heads": 2,
                "vocab_size": 256,
                "positions": 16,
                "tied": True,
            },
            "shape": gpt_shape(blocks=4, hidden=32, vocab_size=256, positions=16, tied=True),
            "data": {"kind": "synthetic"},
            "sequence_length": 16,
            "precision": "bf16",
            "optimizer": {},
            "world_size": 2,
        }
        | changes
    )


def make_profile() -> ActivationProfile:
    """An embedding of 10 bytes a sample, blocks of 100 or (checkpointed) 10, a head of 50."""
    plain = Passes(
        kept=Line(sample_bytes=100),
        forward=(Moment(sample_bytes=120),),
        backward=(Moment(sample_bytes=30), Moment(constant_bytes=64, sample_bytes=-40, gradient_elements=40)),
    )
    checkpointed = Passes(
        kept=Line(sample_bytes=10), forward=(Moment(sample_bytes=60),), backward=(Moment(sample_bytes=130),)
    )
    head = Passes(
        kept=Line(), forward=(Moment(sample_bytes=50),), backward=(Moment(sample_bytes=70, gradient_elements=20),)
    )
    embedding = Passes(kept=Line(sample_bytes=10), forward=(Moment(sample_bytes=15),), backward=())
    return ActivationProfile(
        embedding=embedding,
        runs=(
            Run(first_index=0, count=4, plain=plain, checkpointed=checkpointed, gradient_elements=40),
            Run(first_index=3, count=1, plain=head, checkpointed=head, gradient_elements=20),
        ),
        batch=Line(sample_bytes=2),
    )


def make_request(
    *, candidate: Candidate | None = None, world_size: int = 2, workload: Workload | None = None, **changes: Any
) -> LaunchRequest:
    """A launch of `make_candidate()` with the shortest window."""
    chosen = candidate or make_candidate()
    load = workload or make_workload(world_size=world_size)
    base, _ = prepare_base({"zero_optimization": SMALL_BUCKETS}, precision=load.precision, optimizer=None)
    return LaunchRequest(
        **{
            "candidate": chosen,
            "workload": load,
            "ds_config": render(chosen, workload=load, base=base),
            "window": SHORT_WINDOW,
        }
        | changes
    )


def make_figures(**changes: Any) -> Figures:
    """100 samples/s in steps of 0.16 s, on two ranks."""
    return figures(**changes)


def make_measurement(candidate_id: str = "s2-k0-b2-g1", **figures_changed: Any) -> Measurement:
    """A launch of the search that ran to its end; changes go to its figures."""
    return completed(candidate_id, **figures_changed)


def make_report(rank: int = 0, **changes: Any) -> RankReport:
    """A rank's report of eight steps of 50 ms."""
    return RankReport(
        **{
            "rank": rank,
            "node": f"n{rank}",
            "pid": 100 + rank,
            "device": "cpu",
            "step_times_s": (0.05,) * 8,
            "warmup_steps": 3,
            "skipped_steps": 0,
            "cpu_time_s": 0.4,
            "first_loss": 5.5,
            "loss_at_step_5": 4.5,
            "peak_memory_bytes": 1000,
            "build_peak_bytes": 500,
            "resting_bytes": 700,
            "peak_phase": "backward",
            "recomputed_blocks": 0,
            "build_s": 0.3,
            "left_behind_bytes": 0,
        }
        | changes
    )


def write_sweep(folder: Path, **changes: Any) -> Path:
    """A sweep file, with changes by dotted path (`**{"space.zero_stage": [4]}`); None removes the key.

    Its results go to `folder/results`.
    """
    plain: dict[str, Any] = copy.deepcopy(SWEEP) | {"results": str(folder / "results")}
    for path, value in changes.items():
        *sections, key = path.split(".")
        section = plain
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
        if value is None:
            del section[key]
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(plain))
    return file
