"""Who may win, and which candidates are worth confirming."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from raysweep.measurement import median_log_error
from raysweep.objective import Objective
from raysweep.results.interval import Interval, is_tie, normal_interval
from raysweep.results.records import TrialRecord
from raysweep.results.worth import better_first, sample_value, search_rate, too_slow_because
from raysweep.trial import TrialStatus

FASTEST = Objective()
MOST_FINALISTS = 4
THIRD_MARGIN = 0.2
"""The third is confirmed, too, while it is at most this much slower than the best in the search: one configuration
differs by about as much between two processes."""


def ineligible_because(
    record: TrialRecord, *, allow_loss_difference: bool = False, objective: Objective = FASTEST
) -> str:
    """Why a candidate cannot win; empty where it can."""
    if record.status is not TrialStatus.COMPLETED:
        kind = record.skip_rule or record.failure_kind or record.memory_kind
        return f"{record.status}{f' ({kind})' if kind else ''}: {record.reason}"
    if not fits(record):
        return f"peak of {record.peak_memory_bytes} bytes is above the budget of {record.memory_budget_bytes} bytes"
    if record.loss_parity is False and not allow_loss_difference:
        return "its loss differs from that of the others with the same global batch"
    return too_slow_because(record, objective)


def fits(record: TrialRecord) -> bool:
    """Whether the measured peak is within the budget."""
    peak_bytes, budget_bytes = record.peak_memory_bytes, record.memory_budget_bytes
    return budget_bytes is None or (peak_bytes is not None and peak_bytes <= budget_bytes)


def finalists(
    records: Iterable[TrialRecord],
    *,
    allow_loss_difference: bool = False,
    excluded: Collection[str] = (),
    objective: Objective = FASTEST,
) -> list[str]:
    """Candidate ids to confirm, best first: the best two or three, and all that tie with the best, at most four.

    `excluded` are those that were demoted. Where the least memory is looked for, its measurement is exact and only the
    speed is in doubt: the best three are confirmed.
    """

    def searched(record: TrialRecord) -> float:
        return search_rate(record) * sample_value(record, objective)

    ranked = sorted(
        (
            record
            for record in records
            if record.candidate_id not in excluded
            and not ineligible_because(record, allow_loss_difference=allow_loss_difference, objective=objective)
        ),
        key=lambda record: better_first(record, objective) if objective.is_memory else (-searched(record), 0.0),
    )
    if not ranked or objective.is_memory:
        return [record.candidate_id for record in ranked[:3]]
    best = ranked[0]
    chosen = ranked[:2] + [
        record
        for place, record in enumerate(ranked[2:], start=3)
        if is_tie(worth_log_ratio(record, best, objective))
        or (place == 3 and searched(record) >= (1 - THIRD_MARGIN) * searched(best))
    ]
    return [record.candidate_id for record in chosen[:MOST_FINALISTS]]


def search_log_ratio(record: TrialRecord, reference: TrialRecord) -> Interval:
    """Logarithm of the ratio of two search rates; it knows only the spread between the steps of one launch each."""
    error = math.hypot(_log_error(record), _log_error(reference))
    return normal_interval(math.log(search_rate(record) / search_rate(reference)), error)


def worth_log_ratio(record: TrialRecord, reference: TrialRecord, objective: Objective) -> Interval:
    """The same of what the objective measures: what a sample counts for is known exactly."""
    shift = math.log(sample_value(record, objective) / sample_value(reference, objective))
    return search_log_ratio(record, reference).shifted(shift)


def _log_error(record: TrialRecord) -> float:
    if not record.step_time_s_median or record.step_time_s_iqr is None or not record.measured_steps:
        return 0.0
    return median_log_error(median=record.step_time_s_median, iqr=record.step_time_s_iqr, count=record.measured_steps)
