"""Sets stages and intervals side by side: speed, memory, communication, and why their peaks differ."""

from __future__ import annotations

import json
from collections import defaultdict
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
    """A table and a line for each difference; empty where fewer than two were measured at one micro-batch."""
    shown = alike_but_for_stage_and_interval(records)
    if len(shown) < 2:
        return ""
    base = shown[0]
    table = aligned(
        ["candidate", "samples/s", "peak", "sent a step"],
        [
            [
                record.candidate_id,
                f"{record.samples_per_s:.2f}",
                format_bytes(record.peak_memory_bytes),
                format_bytes(record.estimated_sent_bytes_per_step),
            ]
            for record in shown
        ],
    )
    lines = [f"  {record.candidate_id}: {difference(record, base)}" for record in shown[1:] if _differs(record, base)]
    heading = f"Peak against that of {base.candidate_id}, and the terms that it is predicted to come from:"
    return "\n".join(
        [
            f"Stage by stage at micro-batch {base.micro_batch_size_per_gpu} (sent: by a rank, computed):",
            table,
            *([heading, *lines] if lines else []),
        ]
    )


def alike_but_for_stage_and_interval(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Completed candidates of one micro-batch, accumulation and number of workers, in their order.

    Those of which most were measured; of two such sets of one size the one with the larger micro-batch; of two
    candidates that differ in a further axis the faster.
    """
    sets: dict[tuple[int, int, int], dict[tuple[int, int], TrialRecord]] = defaultdict(dict)
    completed = [record for record in records if record.status is TrialStatus.COMPLETED]
    for record in sorted(completed, key=lambda each: each.samples_per_s or 0.0):
        batch = (record.micro_batch_size_per_gpu, record.gradient_accumulation_steps, record.world_size)
        sets[batch][record.zero_stage, record.activation_checkpoint_interval] = record
    largest = max(sets, key=lambda batch: (len(sets[batch]), batch), default=None)
    return [] if largest is None else [record for _, record in sorted(sets[largest].items())]


def _differs(record: TrialRecord, base: TrialRecord) -> bool:
    assert record.peak_memory_bytes is not None and base.peak_memory_bytes is not None, "both completed"
    return abs(record.peak_memory_bytes - base.peak_memory_bytes) >= SMALLEST_SHARE_NAMED * base.peak_memory_bytes


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


def _signed(size_bytes: int) -> str:
    return f"{'-' if size_bytes < 0 else '+'}{format_bytes(abs(size_bytes))}"
