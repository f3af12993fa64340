"""Who may win, and which candidates are worth confirming."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from raysweep.results.interval import Interval, is_tie, median_log_error, normal_interval
from raysweep.results.records import TrialRecord
from raysweep.trial import TrialStatus

MOST_FINALISTS = 4
THIRD_MARGIN = 0.2
"""The third is confirmed, too, while it is at most this much slower than the best in the search: one configuration
differs by about as much between two processes."""


def ineligible_because(record: TrialRecord, *, allow_loss_difference: bool = False) -> str:
    """Why a candidate cannot win; empty where it can."""
    if record.status is not TrialStatus.COMPLETED:
        kind = record.skip_rule or record.failure_kind or record.memory_kind
        return f"{record.status}{f' ({kind})' if kind else ''}: {record.reason}"
    if not fits(record):
        return f"peak of {record.peak_memory_bytes} bytes is above the budget of {record.memory_budget_bytes} bytes"
    if record.loss_parity is False and not allow_loss_difference:
        return "its loss differs from that of the others with the same global batch"
    return ""


def fits(record: TrialRecord) -> bool:
    """Whether the measured peak is within the budget."""
    peak_bytes, budget_bytes = record.peak_memory_bytes, record.memory_budget_bytes
    return budget_bytes is None or (peak_bytes is not None and peak_bytes <= budget_bytes)


def finalists(
    records: Iterable[TrialRecord], *, allow_loss_difference: bool = False, excluded: Collection[str] = ()
) -> list[str]:
    """Candidate ids to confirm, fastest first: the best two or three, and all that tie with the best, at most four.

    `excluded` are those that were demoted.
    """
    ranked = sorted(
        (
            record
            for record in records
            if record.candidate_id not in excluded
            and not ineligible_because(record, allow_loss_difference=allow_loss_difference)
        ),
        key=search_rate,
        reverse=True,
    )
    if not ranked:
        return []
    best = ranked[0]
    chosen = ranked[:2] + [
        record
        for place, record in enumerate(ranked[2:], start=3)
        if is_tie(search_log_ratio(record, best))
        or (place == 3 and search_rate(record) >= (1 - THIRD_MARGIN) * search_rate(best))
    ]
    return [record.candidate_id for record in chosen[:MOST_FINALISTS]]


def search_rate(record: TrialRecord) -> float:
    """Samples per second of the search, of a candidate that completed."""
    assert record.samples_per_s is not None, record.candidate_id
    return record.samples_per_s


def search_log_ratio(record: TrialRecord, reference: TrialRecord) -> Interval:
    """Logarithm of the ratio of two search rates; it knows only the spread between the steps of one launch each."""
    error = math.hypot(_log_error(record), _log_error(reference))
    return normal_interval(math.log(search_rate(record) / search_rate(reference)), error)


def _log_error(record: TrialRecord) -> float:
    if not record.step_time_s_median or record.step_time_s_iqr is None or not record.measured_steps:
        return 0.0
    return median_log_error(median=record.step_time_s_median, iqr=record.step_time_s_iqr, count=record.measured_steps)
