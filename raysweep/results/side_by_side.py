"""Sets stages and intervals side by side: speed, memory, communication, and why their peaks differ."""

from __future__ import annotations

import json
from collections.abc import Iterable

from raysweep.results.records import TrialRecord
from raysweep.tables import aligned
from raysweep.trial import TrialStatus
from raysweep.units import format_bytes

TERMS_NAMED = 4
"""Terms of a peak that a line names, the weightiest first."""
SMALLEST_SHARE_NAMED = 0.02
"""Of the peak; what differs by less is not named."""


def render_side_by_side(records: Iterable[TrialRecord]) -> str:
    """A table and a line for each difference; empty where fewer than two stages or intervals were measured."""
    shown = fastest_of_each(records)
    if len(shown) < 2:
        return ""
    table = aligned(
        ["fastest of each", "samples/s", "peak", "sent a step"],
        [
            [
                record.candidate_id,
                f"{_search_rate(record):.2f}",
                format_bytes(record.peak_memory_bytes),
                format_bytes(record.estimated_sent_bytes_per_step),
            ]
            for record in shown
        ],
    )
    lines = [f"  {record.candidate_id}: {difference(record, shown[0])}" for record in shown[1:]]
    return "\n".join(
        [
            "Stage by stage (sent: by a rank, computed):",
            table,
            f"Peak against that of {shown[0].candidate_id}, and the terms that it is predicted to come from:",
            *lines,
        ]
    )


def fastest_of_each(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The fastest completed candidate of each pair of stage and interval, in their order."""
    fastest: dict[tuple[int, int], TrialRecord] = {}
    for record in records:
        if record.status is not TrialStatus.COMPLETED:
            continue
        key = (record.zero_stage, record.activation_checkpoint_interval)
        if key not in fastest or _search_rate(record) > _search_rate(fastest[key]):
            fastest[key] = record
    return [fastest[key] for key in sorted(fastest)]


def difference(record: TrialRecord, base: TrialRecord) -> str:
    """How much more or less one peak is than another, as measured, and of which terms, as predicted."""
    assert record.peak_memory_bytes is not None and base.peak_memory_bytes is not None, "both completed"
    less_or_more = _signed(record.peak_memory_bytes - base.peak_memory_bytes)
    own, other = json.loads(record.estimated_peak_terms), json.loads(base.estimated_peak_terms)
    changes = {term: own.get(term, 0) - other.get(term, 0) for term in {*own, *other}}
    smallest = SMALLEST_SHARE_NAMED * base.peak_memory_bytes
    named = sorted((term for term in changes if abs(changes[term]) >= smallest), key=lambda term: -abs(changes[term]))
    terms = ", ".join(f"{term} {_signed(changes[term])}" for term in named[:TERMS_NAMED])
    return f"{less_or_more} ({terms})" if terms else less_or_more


def _search_rate(record: TrialRecord) -> float:
    """Of the search, where all were measured alike; a confirmed figure compares with confirmed ones only."""
    return record.samples_per_s or 0.0


def _signed(size_bytes: int) -> str:
    return f"{'-' if size_bytes < 0 else '+'}{format_bytes(abs(size_bytes))}"
