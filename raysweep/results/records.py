"""One record a candidate, derived from the plan, the launches and the ends of the worker groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysweep.candidate import Candidate
from raysweep.dominance import needs_no_less_memory
from raysweep.measurement import Figures
from raysweep.results.confirm import Confirmation, confirmations
from raysweep.results.parity import LOSS_TOLERANCE, Losses, loss_parity
from raysweep.serde import canonical_json
from raysweep.trial import (
    FailureKind,
    GroupEnd,
    Measurement,
    MemoryKind,
    Phase,
    PlanRow,
    SkipRule,
    SweepStart,
    TrialStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One row of `trials.parquet`. Every row has figures or a reason."""

    candidate_id: str
    zero_stage: int
    activation_checkpoint_interval: int
    micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    deepspeed: str = "{}"
    """JSON: the candidate's further axes, DeepSpeed's keys by dotted path -> value."""
    attn_implementation: str | None = None
    """Of the candidate, where it is an axis."""
    torch_compile: bool = False
    world_size: int
    global_batch_size: int
    status: TrialStatus
    skip_rule: SkipRule | None = None
    failure_kind: FailureKind | None = None
    memory_kind: MemoryKind | None = None
    reason: str = ""
    samples_per_s: float | None = None
    """Of the search; compare confirmed figures with confirmed ones only."""
    confirmed: bool = False
    confirmed_samples_per_s: float | None = None
    """Geometric mean over the rounds; low and high are its 95 % interval."""
    confirmed_samples_per_s_low: float | None = None
    confirmed_samples_per_s_high: float | None = None
    tokens_per_s: float | None = None
    nonpadding_tokens_per_s: float | None = None
    step_time_s_median: float | None = None
    step_time_s_iqr: float | None = None
    measured_steps: int | None = None
    cpu_time_s: float | None = None
    first_loss: float | None = None
    loss_at_step_5: float | None = None
    loss_parity: bool | None = None
    """Whether the losses agree with those of the others with this global batch; None where there is no other."""
    scaling_efficiency: float | None = None
    """Samples/s a worker of the search, over those of the fastest with the fewest workers; None with one number."""
    peak_memory_bytes: int | None = None
    estimated_memory_bytes: int | None = None
    estimated_peak_terms: str = "{}"
    """JSON: what the predicted peak is made of, term -> bytes."""
    estimated_sent_bytes_per_step: int | None = None
    memory_budget_bytes: int | None = None
    recomputed_blocks: int | None = None
    skipped_steps: int | None = None
    group_id: str | None = None
    group_end_reason: str | None = None
    peak_rank: int | None = None
    """The rank with the highest peak; after a failure, the rank that failed."""
    peak_node: str | None = None
    wall_s: float | None = None
    started_at: str | None = None
    versions: str = "{}"
    """JSON: package -> version."""

    def __post_init__(self) -> None:
        assert self.samples_per_s is not None or self.reason, f"{self.candidate_id} has neither figures nor a reason"


def derive_records(
    sweep: SweepStart,
    *,
    measurements: Iterable[Measurement],
    group_ends: Iterable[GroupEnd] = (),
    stop_reason: str = "",
    bounded: Mapping[str, str] | None = None,
) -> list[TrialRecord]:
    """The records of all candidates of the plan, in its order.

    `stop_reason` says why the search ended before the candidates that it never launched, `bounded` (candidate id ->
    reason) which of them a bound on their throughput had ruled out.
    """
    measurements = list(measurements)
    launches = standing_launches(measurements)
    confirmed = confirmations(measurements)
    ends = {end.group_id: end.reason for end in group_ends}
    parity = _parity(sweep, launches)
    too_large = [
        row.candidate for row in sweep.plan_rows if _ran_out_of_memory(launches.get(row.candidate.candidate_id))
    ]
    records = []
    for row in sweep.plan_rows:
        candidate_id = row.candidate.candidate_id
        launch = launches.get(candidate_id)
        values = _shared_values(sweep, row) | (
            _launched_values(launch, ends) if launch else _unlaunched_values(row, too_large, stop_reason, bounded or {})
        )
        values |= _confirmed_values(confirmed.get(candidate_id), values["reason"])
        records.append(TrialRecord(**values, loss_parity=parity.get(candidate_id)))
    efficiencies = scaling_efficiencies(records)
    return [replace(each, scaling_efficiency=efficiencies.get(each.candidate_id)) for each in records]


def scaling_efficiencies(records: Iterable[TrialRecord]) -> dict[str, float]:
    """Candidate id -> its samples/s a worker over those of the fastest completed with the fewest workers, both of the
    search; empty where all have one number of workers.
    """
    completed = [each for each in records if each.status is TrialStatus.COMPLETED and each.samples_per_s]
    each_worker = {each.candidate_id: (each.samples_per_s or 0.0) / each.world_size for each in completed}
    fewest = min((each.world_size for each in completed), default=0)
    if all(each.world_size == fewest for each in completed):
        return {}
    base = max(each_worker[each.candidate_id] for each in completed if each.world_size == fewest)
    return {candidate_id: rate / base for candidate_id, rate in each_worker.items()}


def standing_launches(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """Candidate id -> its launch of the search that stands: the last one, since a retry replaces what it repeats."""
    return {each.candidate_id: each for each in measurements if each.phase in (Phase.SEARCH, Phase.RETRY)}


def _parity(sweep: SweepStart, launches: Mapping[str, Measurement]) -> dict[str, bool | None]:
    losses = [
        Losses(
            candidate_id=row.candidate.candidate_id,
            global_batch_size=row.global_batch_size,
            first_loss=launch.figures.first_loss,
            loss_at_step_5=launch.figures.loss_at_step_5,
            split=row.candidate.micro_batch_size_per_gpu if launch.figures.random_forward else None,
        )
        for row in sweep.plan_rows
        if (launch := launches.get(row.candidate.candidate_id)) and launch.figures
    ]
    return loss_parity(losses, tolerance=LOSS_TOLERANCE[sweep.workload.precision])


def _shared_values(sweep: SweepStart, row: PlanRow) -> dict[str, Any]:
    return {
        "candidate_id": row.candidate.candidate_id,
        "zero_stage": row.candidate.zero_stage,
        "activation_checkpoint_interval": row.candidate.activation_checkpoint_interval,
        "micro_batch_size_per_gpu": row.candidate.micro_batch_size_per_gpu,
        "gradient_accumulation_steps": row.candidate.gradient_accumulation_steps,
        "deepspeed": canonical_json(dict(row.candidate.deepspeed)),
        "attn_implementation": row.candidate.attn_implementation,
        "torch_compile": row.candidate.torch_compile,
        "world_size": row.world_size,
        "global_batch_size": row.global_batch_size,
        "estimated_memory_bytes": row.estimated_memory_bytes,
        "estimated_peak_terms": canonical_json(dict(row.estimated_peak_terms)),
        "estimated_sent_bytes_per_step": row.estimated_sent_bytes_per_step,
        "memory_budget_bytes": sweep.memory_budget_bytes,
        "versions": canonical_json(dict(sweep.versions)),
    }


def _ran_out_of_memory(launch: Measurement | None) -> bool:
    return launch is not None and launch.status is TrialStatus.OOM


def _unlaunched_values(
    row: PlanRow, too_large: Sequence[Candidate], stop_reason: str, bounded: Mapping[str, str]
) -> dict[str, Any]:
    if row.status is not None:
        return {"status": row.status, "skip_rule": row.skip_rule, "reason": row.reason}
    smaller = next((each for each in too_large if needs_no_less_memory(row.candidate, each)), None)
    if smaller is not None:
        return {
            "status": TrialStatus.SKIPPED,
            "skip_rule": SkipRule.DOMINATED,
            "reason": f"needs no less memory than {smaller.candidate_id}, which ran out of it",
        }
    bound = bounded.get(row.candidate.candidate_id)
    if bound:
        return {"status": TrialStatus.SKIPPED, "skip_rule": SkipRule.THROUGHPUT_BOUND, "reason": bound}
    return {
        "status": TrialStatus.SKIPPED,
        "skip_rule": SkipRule.SEARCH_STOPPED,
        "reason": f"not launched: {stop_reason or 'the search had not come to it'}",
    }


def _launched_values(launch: Measurement, group_end_reasons: Mapping[str, str]) -> dict[str, Any]:
    return {
        "status": launch.status,
        "failure_kind": launch.failure_kind,
        "memory_kind": launch.memory_kind,
        "reason": launch.reason or ("" if launch.figures else f"{launch.status}, no message"),
        "peak_memory_bytes": launch.peak_memory_bytes,
        "group_id": launch.group_id,
        "group_end_reason": group_end_reasons.get(launch.group_id),
        "wall_s": launch.wall_s,
        "started_at": launch.started_at,
    } | (_figure_values(launch.figures) if launch.figures else _failure_values(launch))


def _figure_values(figures: Figures) -> dict[str, Any]:
    names = (
        "samples_per_s",
        "tokens_per_s",
        "nonpadding_tokens_per_s",
        "step_time_s_median",
        "step_time_s_iqr",
        "measured_steps",
        "cpu_time_s",
        "first_loss",
        "loss_at_step_5",
        "peak_memory_bytes",
        "recomputed_blocks",
        "skipped_steps",
        "peak_rank",
        "peak_node",
    )
    return {name: getattr(figures, name) for name in names}


def _failure_values(launch: Measurement) -> dict[str, Any]:
    """An out-of-memory that came after whole steps knows how many blocks those recomputed."""
    if not launch.failures:
        return {}
    first = launch.failures[0]
    return {
        "peak_rank": first.rank,
        "peak_node": first.node,
        "recomputed_blocks": first.data.get("recomputed_blocks"),
    }


def _confirmed_values(confirmation: Confirmation | None, reason: str) -> dict[str, Any]:
    if confirmation is None:
        return {}
    if confirmation.failure:
        return {"reason": "; ".join(filter(None, [reason, f"demoted in confirmation: {confirmation.failure}"]))}
    if not confirmation.confirmed:
        return {}
    interval = confirmation.interval()
    return {
        "confirmed": True,
        "confirmed_samples_per_s": interval.centre,
        "confirmed_samples_per_s_low": interval.low,
        "confirmed_samples_per_s_high": interval.high,
    }
