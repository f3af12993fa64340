"""Picks the winner under the budget, and says of every other candidate why it lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raysweep.objective import Goal, Objective
from raysweep.results.confirm import Confirmation, confirmations
from raysweep.results.finalists import FASTEST, fits, ineligible_because, worth_log_ratio
from raysweep.results.interval import TIE_MARGIN, Interval, is_tie
from raysweep.results.records import TrialRecord
from raysweep.results.worth import best_known_rate, better_first, sample_value, search_rate, speed_worth, value
from raysweep.trial import Measurement, TrialStatus
from raysweep.units import format_bytes

_OF_WHAT = {Goal.SAMPLES_PER_S: "speed", Goal.PEAK_MEMORY: "speed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFlagged:
    """A candidate that cannot win because its loss differs, with what it would have given."""

    candidate_id: str
    samples_per_s: float
    over_winner: float | None
    """Its search rate over the winner's, less 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The outcome of a sweep."""

    winner: str | None = None
    """Candidate id; None where nothing completed within the budget."""
    confirmed: bool = False
    samples_per_s: float | None = None
    """Confirmed where `confirmed`, else of the search; low and high are the confirmed 95 % interval."""
    samples_per_s_low: float | None = None
    samples_per_s_high: float | None = None
    runner_up: str | None = None
    runner_up_reason: str = ""
    pareto_front: tuple[str, ...] = ()
    """Fastest first: those that no other beats in both samples/s and peak memory."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Candidate id -> why it is not the winner."""
    loss_flagged: tuple[LossFlagged, ...] = ()
    objective: Objective = FASTEST
    value: float | None = None
    """What the objective measures of the winner, in its unit."""
    none_because: str = ""
    """Why there is no winner; empty where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contest:
    """Who can win, and how two of them compare: by confirmed rounds where there are any, else by the search."""

    records: Mapping[str, TrialRecord]
    rounds: Mapping[str, Confirmation]
    barred: Mapping[str, str]
    """Candidate id -> why it cannot win."""
    objective: Objective

    @property
    def contenders(self) -> list[TrialRecord]:
        """The confirmed; where none is, all that can win."""
        able = [record for record in self.records.values() if record.candidate_id not in self.barred]
        return [record for record in able if record.confirmed] or able

    def log_ratio(self, record: TrialRecord, reference: TrialRecord) -> Interval:
        if record.confirmed and reference.confirmed:
            shift = math.log(sample_value(record, self.objective) / sample_value(reference, self.objective))
            return self.rounds[record.candidate_id].log_ratio(self.rounds[reference.candidate_id]).shifted(shift)
        return worth_log_ratio(record, reference, self.objective)

    def under_pressure(self, record: TrialRecord) -> bool:
        rounds = self.rounds.get(record.candidate_id)
        return rounds is not None and rounds.memory_pressure


def choose_winner(
    records: Sequence[TrialRecord],
    *,
    measurements: Iterable[Measurement],
    allow_loss_difference: bool = False,
    objective: Objective = FASTEST,
) -> Selection:
    """The best candidate that fits, by the objective; of those that tie with it, the one that needs least memory.

    Peaks within 1 % of each other count as equal, and the faster of them wins. With the least memory as objective
    all that are fast enough are compared so.

    Where candidates are confirmed, one of them wins, by the paired differences of their rounds; else the search
    decides, and the selection says that it is unconfirmed. A candidate for which the allocator had to retry (memory
    pressure) loses ties.
    """
    rounds = confirmations(measurements)
    contest = _Contest(
        records={record.candidate_id: record for record in records},
        rounds=rounds,
        barred=_barred(records, rounds, allow_loss_difference, objective),
        objective=objective,
    )
    winner = _winner(contest)
    lost = {
        record.candidate_id: _why_lost(record, winner=winner, contest=contest)
        for record in records
        if record is not winner
    }
    runner_up = _runner_up(contest, winner)
    return Selection(
        winner=winner.candidate_id if winner else None,
        confirmed=winner is not None and winner.confirmed,
        samples_per_s=best_known_rate(winner) if winner else None,
        samples_per_s_low=winner.confirmed_samples_per_s_low if winner else None,
        samples_per_s_high=winner.confirmed_samples_per_s_high if winner else None,
        runner_up=runner_up,
        runner_up_reason=lost[runner_up] if runner_up else "",
        pareto_front=pareto_front(records, barred=contest.barred, objective=objective),
        lost=lost,
        loss_flagged=() if allow_loss_difference else _loss_flagged(records, winner),
        objective=objective,
        value=value(winner, objective) if winner else None,
        none_because="" if winner else _why_none(records, objective),
    )


def _why_none(records: Iterable[TrialRecord], objective: Objective) -> str:
    able = [each for each in records if each.status is TrialStatus.COMPLETED and fits(each)]
    if not able or objective.at_least_samples_per_s is None:
        return "no candidate completed within the budget"
    fastest = max(able, key=best_known_rate)
    return (
        f"no candidate reaches the {objective.at_least_samples_per_s:g} samples/s that the objective asks for; the "
        f"fastest that fits, {fastest.candidate_id}, has {best_known_rate(fastest):.2f}"
    )


def pareto_front(
    records: Iterable[TrialRecord], *, barred: Iterable[str] = (), objective: Objective = FASTEST
) -> tuple[str, ...]:
    """Ids of the completed candidates that no other beats in both speed and peak memory, fastest first.

    Speed is in the unit of the objective. Candidates that are only too slow for it are on the front, too.
    """
    slow_only = {each.candidate_id for each in records if _is_slow_only(each, objective)} if objective.is_memory else ()
    barred = set(barred) - set(slow_only)
    measured = [
        (speed_worth(record, objective), record.peak_memory_bytes, record.candidate_id)
        for record in records
        if record.status is TrialStatus.COMPLETED
        and record.candidate_id not in barred
        and record.peak_memory_bytes is not None
        and fits(record)
    ]
    front: list[str] = []
    least_bytes = math.inf
    for _, peak_bytes, candidate_id in sorted(measured, key=lambda each: (-each[0], each[1])):
        if peak_bytes < least_bytes:
            front.append(candidate_id)
            least_bytes = peak_bytes
    return tuple(front)


def _barred(
    records: Iterable[TrialRecord],
    rounds: Mapping[str, Confirmation],
    allow_loss_difference: bool,
    objective: Objective,
) -> dict[str, str]:
    barred = {}
    for record in records:
        confirmation = rounds.get(record.candidate_id)
        reason = ineligible_because(record, allow_loss_difference=allow_loss_difference, objective=objective)
        if not reason and confirmation and confirmation.failure:
            reason = f"demoted in confirmation: {confirmation.failure}"
        if reason:
            barred[record.candidate_id] = reason
    return barred


def _winner(contest: _Contest) -> TrialRecord | None:
    if not contest.contenders:
        return None
    best = min(contest.contenders, key=lambda record: better_first(record, contest.objective))
    tied = [
        record
        for record in contest.contenders
        if contest.objective.is_memory or record is best or is_tie(contest.log_ratio(record, best))
    ]
    calm = [record for record in tied if not contest.under_pressure(record)] or tied
    least_bytes = min(record.peak_memory_bytes or 0 for record in calm)
    lean = [record for record in calm if (record.peak_memory_bytes or 0) <= least_bytes * (1 + TIE_MARGIN)]
    return max(lean, key=lambda record: speed_worth(record, contest.objective))


def _runner_up(contest: _Contest, winner: TrialRecord | None) -> str | None:
    able = [each for each in contest.records.values() if each.candidate_id not in contest.barred and each is not winner]
    if winner is None or not able:
        return None
    return min(able, key=lambda each: (not each.confirmed, better_first(each, contest.objective))).candidate_id


def _why_lost(record: TrialRecord, *, winner: TrialRecord | None, contest: _Contest) -> str:
    if record.candidate_id in contest.barred or winner is None:
        return contest.barred[record.candidate_id]
    ratio = contest.log_ratio(record, winner)
    where = "in confirmation" if record.confirmed and winner.confirmed else "in the search"
    of_what = _OF_WHAT.get(contest.objective.goal, contest.objective.unit)
    difference = f"{_percent(ratio.centre)} in {of_what} against the winner {where}{_range(ratio)}"
    more_bytes = (record.peak_memory_bytes or 0) - (winner.peak_memory_bytes or 0)
    if contest.objective.is_memory and more_bytes > TIE_MARGIN * (winner.peak_memory_bytes or 0):
        return f"needs {format_bytes(more_bytes)} more memory than the winner; {difference}"
    if winner.confirmed and not record.confirmed:
        return f"{difference}, not confirmed"
    if not is_tie(ratio):
        return difference
    if contest.under_pressure(record) and not contest.under_pressure(winner):
        return f"{difference}: a tie, and it is short of memory (the allocator had to retry)"
    if more_bytes > TIE_MARGIN * (winner.peak_memory_bytes or 0):
        return f"{difference}: a tie, and it needs {format_bytes(more_bytes)} more memory"
    return f"{difference}: a tie, in memory too"


def _is_slow_only(record: TrialRecord, objective: Objective) -> bool:
    """Whether nothing but its speed keeps a candidate from winning."""
    return not ineligible_because(record) and bool(ineligible_because(record, objective=objective))


def _percent(log_ratio: float) -> str:
    return f"{math.expm1(log_ratio) * 100:+.1f} %"


def _range(log_ratio: Interval) -> str:
    if not math.isfinite(log_ratio.low):
        return ""
    return f" (95 % interval {_percent(log_ratio.low)} to {_percent(log_ratio.high)})"


def _loss_flagged(records: Iterable[TrialRecord], winner: TrialRecord | None) -> tuple[LossFlagged, ...]:
    return tuple(
        LossFlagged(
            candidate_id=record.candidate_id,
            samples_per_s=search_rate(record),
            over_winner=search_rate(record) / search_rate(winner) - 1 if winner else None,
        )
        for record in records
        if record.status is TrialStatus.COMPLETED and record.loss_parity is False and fits(record)
    )
