"""Turns what came back of a launch into its record: the same for every launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysweep.measurement import Figures, RankReport, reduce_reports
from raysweep.outcome import judge
from raysweep.probe import Probe
from raysweep.race import WindowEnd
from raysweep.serde import from_dict, sha256_of
from raysweep.trial import LaunchRequest, Measurement, RankFailure, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a launch: a report of every rank, or the failures of some."""

    reports: Sequence[RankReport]
    failures: Sequence[RankFailure]
    group_id: str
    position_in_group: int
    ranks: Sequence[Mapping[str, Any]]
    """Facts of each rank: pid, node, log_path, and the probe of its group."""
    started_at: str
    wall_s: float
    waited_s: float = 0.0
    """Of `wall_s`, until a group took it."""


def read_answer(plain: Mapping[str, Any], *, started_at: str, wall_s: float) -> Answer:
    """A broker's answer as our nouns."""
    return Answer(
        reports=[from_dict(RankReport, report) for report in plain["reports"]],
        failures=[from_dict(RankFailure, failure) for failure in plain["failures"]],
        group_id=plain["group_id"],
        position_in_group=plain["position_in_group"],
        ranks=plain["ranks"],
        started_at=started_at,
        wall_s=wall_s,
        waited_s=plain["waited_s"],
    )


def measurement_of(request: LaunchRequest, answer: Answer) -> Measurement:
    """The record of one launch."""
    place: dict[str, Any] = {
        "candidate_id": request.candidate.candidate_id,
        "phase": request.phase,
        "round": request.round,
        "group_id": answer.group_id,
        "position_in_group": answer.position_in_group,
        "ds_config_sha256": sha256_of(dict(request.ds_config)),
        "started_at": answer.started_at,
        "wall_s": answer.wall_s,
        "waited_s": answer.waited_s,
        "worker_pids": tuple(int(facts["pid"]) for facts in answer.ranks),
        "nodes": tuple(str(facts["node"]) for facts in answer.ranks),
        "log_paths": tuple(str(facts["log_path"]) for facts in answer.ranks),
        "probe": _probe(answer),
    }
    if answer.failures:
        outcome = judge(answer.failures)
        return Measurement(
            status=outcome.status,
            failure_kind=outcome.failure_kind,
            memory_kind=outcome.memory_kind,
            reason=outcome.reason,
            failures=outcome.failures,
            peak_memory_bytes=_known_peak(outcome.failures),
            **place,
        )
    candidate = request.candidate
    figures = reduce_reports(
        answer.reports,
        workload=request.workload,
        global_batch_size=request.workload.global_batch_of(
            candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
        ),
    )
    was_stopped = figures.window_end == WindowEnd.LOST
    return Measurement(
        status=TrialStatus.STOPPED if was_stopped else TrialStatus.COMPLETED,
        reason=_why_stopped(request, figures) if was_stopped else "",
        figures=figures,
        peak_memory_bytes=figures.peak_memory_bytes,
        **place,
    )


def _probe(answer: Answer) -> Probe | None:
    """All ranks have the same one; it is recorded once a group."""
    if answer.position_in_group != 1 or not answer.ranks or not answer.ranks[0].get("probe"):
        return None
    return from_dict(Probe, answer.ranks[0]["probe"])


def _why_stopped(request: LaunchRequest, figures: Figures) -> str:
    race = request.race
    assert race is not None, "only a race is lost"
    best = figures.samples_per_s * figures.step_time_s_median / race.best_step_time_s
    return (
        f"stopped after {figures.measured_steps} timed steps: {figures.samples_per_s:.2f} samples/s, surely below "
        f"{race.least_share:g} of the best, {best:.2f}"
    )


def _known_peak(failures: Sequence[RankFailure]) -> int | None:
    peaks = [int(failure.data["peak_bytes"]) for failure in failures if "peak_bytes" in failure.data]
    return max(peaks) if peaks else None
