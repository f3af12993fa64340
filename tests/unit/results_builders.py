"""Small sweeps of known numbers for the tests of `raysweep/results/`."""

from __future__ import annotations

from typing import Any

from raysweep.candidate import Candidate
from raysweep.measurement import Figures
from raysweep.results.records import TrialRecord, derive_records
from raysweep.trial import Measurement, Phase, PlanRow, SweepStart, TrialStatus
from raysweep.workload import Workload

MIB = 2**20
WORKLOAD = Workload(
    model={"kind": "gpt"},
    shape=None,
    data={"kind": "synthetic"},
    sequence_length=128,
    precision="bf16",
    optimizer={},
    world_size=2,
)


def candidate(micro_batch: int = 1) -> Candidate:
    return Candidate(zero_stage=2, activation_checkpoint_interval=1, micro_batch_size_per_gpu=micro_batch)


def figures(samples_per_s: float = 100.0, **changes: Any) -> Figures:
    """16 samples a step, so 100 samples/s is a step of 0.16 s."""
    step_s = 16 / samples_per_s
    values: dict[str, Any] = {
        "samples_per_s": samples_per_s,
        "tokens_per_s": samples_per_s * 128,
        "step_time_s_median": step_s,
        "step_time_s_iqr": 0.01 * step_s,
        "step_times_s": (step_s,) * 8,
        "measured_steps": 8,
        "warmup_steps": 3,
        "skipped_steps": 0,
        "cpu_time_s": 1.0,
        "first_loss": 5.5,
        "loss_at_step_5": 4.5,
        "peak_memory_bytes": 50 * MIB,
        "build_peak_bytes": 20 * MIB,
        "resting_bytes": 30 * MIB,
        "peak_phase": "backward",
        "peak_rank": 1,
        "peak_node": "n1",
        "recomputed_blocks": 4,
        "build_s": 0.5,
        "left_behind_bytes": 0,
        "reserved_bytes": None,
        "device_used_bytes": None,
        "memory_pressure": False,
        "cycled_data": False,
        "device": "cpu",
        "nodes": ("n0", "n1"),
        "worker_pids": (11, 12),
    }
    return Figures(**values | changes)


def completed(candidate_id: str, samples_per_s: float = 100.0, **changes: Any) -> Measurement:
    """A launch of the search that ran to its end; `changes` go to its figures."""
    shown = figures(samples_per_s, **changes)
    return Measurement(
        candidate_id=candidate_id,
        phase=Phase.SEARCH,
        round=0,
        status=TrialStatus.COMPLETED,
        figures=shown,
        peak_memory_bytes=shown.peak_memory_bytes,
        group_id="g1",
        ds_config_sha256="ab" * 32,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=2.5,
        worker_pids=(11, 12),
        nodes=("n0", "n1"),
    )


def failed(candidate_id: str, status: TrialStatus, **values: Any) -> Measurement:
    return Measurement(
        **{"candidate_id": candidate_id, "phase": Phase.SEARCH, "round": 0, "status": status, "group_id": "g1"} | values
    )


def confirmed(candidate_id: str, rates: tuple[float, ...], **changes: Any) -> list[Measurement]:
    """A finalist's rounds 1, 2, ..."""
    return [
        Measurement(
            candidate_id=candidate_id,
            phase=Phase.CONFIRM,
            round=number,
            status=TrialStatus.COMPLETED,
            figures=figures(rate, **changes),
        )
        for number, rate in enumerate(rates, start=1)
    ]


def plan_row(micro_batch: int, **values: Any) -> PlanRow:
    return PlanRow(
        **{"candidate": candidate(micro_batch), "world_size": 2, "global_batch_size": 16, "reason": ""} | values
    )


def sweep(*rows: PlanRow, **values: Any) -> SweepStart:
    return SweepStart(
        **{
            "sweep_sha256": "s" * 64,
            "workload": WORKLOAD,
            "base_ds_config": {},
            "memory_budget_bytes": 100 * MIB,
            "versions": {"torch": "2.13.0"},
            "plan_rows": rows,
        }
        | values
    )


def records(*launches: Measurement) -> list[TrialRecord]:
    """A record for each launched candidate of micro-batches 1 to 8."""
    ids = sorted({launch.candidate_id for launch in launches})
    rows = [plan_row(number) for number in range(1, 9) if candidate(number).candidate_id in ids]
    return derive_records(sweep(*rows), measurements=launches)


def ident(micro_batch: int) -> str:
    """The id of `candidate(micro_batch)`."""
    return candidate(micro_batch).candidate_id
