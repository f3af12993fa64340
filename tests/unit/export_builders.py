"""A finished sweep's journal for the tests of exports, report and comparison: real configs, known numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders import SMALL_BUCKETS, make_candidate, make_workload
from results_builders import MIB, completed, confirmed, failed

from raysweep.candidate import Candidate
from raysweep.ds_config import prepare_base, render
from raysweep.exports.answer import Answer, choose_answer
from raysweep.results.journal import EntryKind, Journal, JournalContents
from raysweep.serde import sha256_of, to_dict
from raysweep.trial import Measurement, PlanRow, SweepStart, TrialStatus
from raysweep.workload import Workload

VERSIONS = {"python": "3.11.7", "raysweep": "0.1.0", "ray": "2.60.0", "torch": "2.13.0+cpu", "deepspeed": "0.19.8"}


def finished_sweep(
    candidate: Candidate | None = None,
    *,
    workload: Workload | None = None,
    base: dict[str, Any] | None = None,
    others: Iterable[Candidate] = (),
    nodes: tuple[str, ...] = ("n0", "n1"),
    **changes: Any,
) -> JournalContents:
    """A sweep that `candidate` won with 100 samples/s, confirmed; `others` were a tenth slower each."""
    winner = candidate or make_candidate(activation_checkpoint_interval=2, gradient_accumulation_steps=2)
    load = workload or make_workload(environment={"OMP_NUM_THREADS": "1"})
    prepared, _ = prepare_base(
        base or {"zero_optimization": dict(SMALL_BUCKETS)}, precision=load.precision, optimizer=None
    )
    candidates = [winner, *others]
    launches: list[Measurement] = []
    for place, each in enumerate(candidates):
        config_sha256 = sha256_of(render(each, workload=load, base=prepared))
        rate = 100.0 * 0.9**place
        rounds = confirmed(each.candidate_id, (rate, rate * 1.001, rate * 0.999)) if place == 0 else []
        launches += [
            replace(launch, ds_config_sha256=config_sha256, nodes=nodes)
            for launch in (completed(each.candidate_id, rate), *rounds)
        ]
    sweep = SweepStart(
        **{
            "sweep_sha256": "5a" * 32,
            "workload": load,
            "base_ds_config": prepared,
            "memory_budget_bytes": 100 * MIB,
            "versions": VERSIONS,
            "resources_per_worker": {"CPU": 1.0} if load.device == "cpu" else {"CPU": 4.0, "GPU": 1.0},
            "started_at": "2026-01-01T00:00:00+00:00",
            "plan_rows": tuple(_plan_row(each, load) for each in candidates),
        }
        | changes
    )
    return JournalContents(sweeps=(sweep,), measurements=tuple(launches), finished={"reason": "all were launched"})


def _plan_row(candidate: Candidate, workload: Workload) -> PlanRow:
    return PlanRow(
        candidate=candidate,
        estimated_memory_bytes=60 * MIB,
        estimated_peak_terms={"weights": 20 * MIB, "activations": 40 * MIB},
        estimated_sent_bytes_per_step=3 * MIB,
        world_size=workload.world_size,
        global_batch_size=workload.global_batch_of(
            candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
        ),
    )


def make_answer(candidate: Candidate | None = None, *, world_size: int | None = None, **given: Any) -> Answer:
    """The answer of `finished_sweep`."""
    return choose_answer(finished_sweep(candidate, **given), world_size=world_size)


def write_journal(folder: Path, contents: JournalContents) -> Path:
    """The journal of a finished sweep, as a driver would have left it; the folder."""
    with Journal.open(folder / "journal.jsonl") as journal:
        for sweep in contents.sweeps:
            journal.append(EntryKind.SWEEP, to_dict(sweep))
        for measurement in contents.measurements:
            journal.append(EntryKind.MEASUREMENT, to_dict(measurement))
        for end in contents.group_ends:
            journal.append(EntryKind.GROUP_END, to_dict(end))
        if contents.finished is not None:
            journal.append(EntryKind.FINISHED, contents.finished)
    return folder


def large_sweep(count: int) -> JournalContents:
    """A sweep of `count` candidates of the shape that sweeps have: stages, intervals, micro-batches and buckets.

    A quarter ran out of memory, a quarter was pruned, the others have figures, none is confirmed.
    """
    load = make_workload()
    candidates = [
        Candidate(
            zero_stage=number % 4,
            activation_checkpoint_interval=number // 4 % 5,
            micro_batch_size_per_gpu=2 ** (number // 20 % 8),
            deepspeed={"zero_optimization.reduce_bucket_size": 1_000_000 + number // 160},
        )
        for number in range(count)
    ]
    rows, launches = [], []
    for number, each in enumerate(candidates):
        row = _plan_row(each, load)
        if number % 4 == 1:
            reason = "predicted peak 164.1 MiB (backward_start), at least 156.4 MiB, is above the budget of 100.0 MiB"
            row = replace(row, status=TrialStatus.PRUNED, reason=reason)
        elif number % 4 == 2:
            launches.append(
                failed(each.candidate_id, TrialStatus.OOM, reason="out of memory in step", peak_memory_bytes=120 * MIB)
            )
        else:
            rate, peak_bytes = 50.0 + number * 7919 % 1000 / 10, (40 + number * 104729 % 600 / 10) * MIB
            launches.append(completed(each.candidate_id, rate, peak_memory_bytes=int(peak_bytes)))
        rows.append(row)
    sweep = SweepStart(
        sweep_sha256="1a" * 32,
        workload=load,
        base_ds_config={"optimizer": {"type": "AdamW"}},
        memory_budget_bytes=100 * MIB,
        versions=VERSIONS,
        started_at="2026-01-01T00:00:00+00:00",
        plan_rows=tuple(rows),
    )
    return JournalContents(sweeps=(sweep,), measurements=tuple(launches), finished={"reason": "all were launched"})
