"""Gathers what a report tells from a journal, before anything is written in words or drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from raysweep.results.confirm import Confirmation, confirmations
from raysweep.results.journal import JournalContents
from raysweep.results.records import TrialRecord
from raysweep.results.report import Cause, failures_by_cause
from raysweep.results.select import Selection, choose_winner
from raysweep.results.store import records_from
from raysweep.scale_forecast import ScaleForecast
from raysweep.step_shares import StepShares
from raysweep.trial import Measurement, Phase, SweepStart, TrialStatus


class StepExplainer(Protocol):
    """Takes the winner's step apart; it needs numpy, which a page does not."""

    def __call__(self, contents: JournalContents, *, winner: str | None) -> StepShares | None:
        """What is known, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """A sweep, ready to be told."""

    name: str
    """Of the results folder."""
    sweep: SweepStart
    records: Sequence[TrialRecord]
    selection: Selection
    search_launches: Sequence[Measurement]
    """In the order of their launch, retries included."""
    rounds: Mapping[str, Confirmation]
    causes: Sequence[Cause]
    launches: int
    group_starts: int
    group_s: float
    """Seconds that worker groups were up."""
    stop_reason: str
    """Empty where the driver has not come to its end."""
    sweep_file: str
    """Text of the sweep file; empty where there is no copy."""
    steps: StepShares | None = None
    """Where the winner's step goes; None where that is not known."""
    forecast: ScaleForecast | None = None
    """What more workers are predicted to give; None where no model could be fitted."""

    @property
    def winner(self) -> TrialRecord | None:
        """The winner's record."""
        return self.by_id.get(self.selection.winner or "")

    @property
    def by_id(self) -> dict[str, TrialRecord]:
        """Candidate id -> record."""
        return {record.candidate_id: record for record in self.records}

    @property
    def completed(self) -> list[TrialRecord]:
        """Records with figures."""
        return [record for record in self.records if record.status is TrialStatus.COMPLETED]


def gather(
    contents: JournalContents,
    *,
    name: str,
    sweep_file: str = "",
    explain: StepExplainer | None = None,
    foretell: Callable[[JournalContents], ScaleForecast | None] | None = None,
) -> ReportFacts:
    """The facts of a journal's latest sweep.

    `explain` says where the winner's step goes, `foretell` what more workers would give; they need numpy.
    """
    records = records_from(contents)
    measurements = contents.measurements
    selection = choose_winner(
        records,
        measurements=measurements,
        allow_loss_difference=contents.sweep.allow_loss_difference,
        objective=contents.sweep.objective,
    )
    return ReportFacts(
        name=name,
        sweep=contents.sweep,
        records=records,
        selection=selection,
        search_launches=[each for each in measurements if each.phase in (Phase.SEARCH, Phase.RETRY)],
        rounds=confirmations(measurements),
        causes=failures_by_cause(records),
        launches=len(measurements),
        group_starts=len(contents.group_ends),
        group_s=sum(_seconds_between(end.started_at, end.ended_at) for end in contents.group_ends),
        stop_reason=str((contents.finished or {}).get("reason", "")),
        sweep_file=sweep_file,
        steps=explain(contents, winner=selection.winner) if explain else None,
        forecast=foretell(contents) if foretell else None,
    )


def _seconds_between(began: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
