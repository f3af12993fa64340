"""Gathers what the files of the winner tell."""

from __future__ import annotations

from collections.abc import Sequence

from raysweep.clock import utc_now
from raysweep.ds_config import render
from raysweep.results.export import BestCandidate
from raysweep.results.journal import JournalContents
from raysweep.results.records import TrialRecord
from raysweep.results.select import Selection
from raysweep.trial import TrialStatus


def best_of(contents: JournalContents, records: Sequence[TrialRecord], selection: Selection) -> BestCandidate:
    """The winner of a selection, with its config rendered anew and the hash that its measurement recorded."""
    winner = selection.winner
    candidate = next(row.candidate for row in contents.sweep.plan_rows if row.candidate.candidate_id == winner)
    measured = [m for m in contents.measurements if m.candidate_id == winner and m.status is TrialStatus.COMPLETED]
    return BestCandidate(
        record=next(record for record in records if record.candidate_id == winner),
        selection=selection,
        sweep=contents.sweep,
        ds_config=render(candidate, workload=contents.sweep.workload.of(candidate), base=contents.sweep.base_ds_config),
        ds_config_sha256=measured[-1].ds_config_sha256,
        candidate=candidate,
        exported_at=utc_now(),
    )
