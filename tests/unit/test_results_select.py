"""Finalists, the winner among them, and why the others lost."""

from __future__ import annotations

import math

import pytest
from results_builders import MIB, completed, confirmed, failed, ident, plan_row, records, sweep

from raysweep.measurement import median_log_error
from raysweep.results.finalists import finalists
from raysweep.results.interval import Interval, is_tie, t_interval
from raysweep.results.records import derive_records
from raysweep.results.select import Selection, choose_winner, pareto_front
from raysweep.serde import from_dict, to_dict
from raysweep.trial import FailureKind, Measurement, Phase, TrialStatus


def select(*launches: Measurement, allow_loss_difference: bool = False) -> Selection:
    return choose_winner(records(*launches), measurements=launches, allow_loss_difference=allow_loss_difference)


def searched(*rates: float, **changes: float) -> list[Measurement]:
    return [completed(ident(number), rate, **changes) for number, rate in enumerate(rates, start=1)]


def test_t_interval_of_three() -> None:
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval.centre == 2.0
    assert interval.high - 2.0 == pytest.approx(4.303 / math.sqrt(3))
    assert t_interval([1.0]).high == math.inf


@pytest.mark.parametrize(
    ("low", "high", "tie"), [(-0.05, 0.002, True), (0.002, 0.009, True), (0.002, 0.02, False), (-0.03, -0.02, False)]
)
def test_a_tie_contains_zero_or_lies_within_one_percent(low: float, high: float, tie: bool) -> None:
    assert is_tie(Interval(centre=(low + high) / 2, low=low, high=high)) is tie


def test_error_of_a_median() -> None:
    # sigma 0.1349 / 1.349 = 0.1; 1.2533 x 0.1 / 1.0 / sqrt(4)
    assert median_log_error(median=1.0, iqr=0.1349, count=4) == pytest.approx(0.062666, rel=1e-4)


def test_the_third_is_a_finalist_only_when_near() -> None:
    assert finalists(records(*searched(100, 90, 85, 84))) == [ident(1), ident(2), ident(3)]
    assert finalists(records(*searched(60, 100, 90))) == [ident(2), ident(3)]
    assert finalists(records(*searched(100))) == [ident(1)]
    assert finalists([]) == []


def test_ties_with_the_best_are_finalists_but_at_most_four() -> None:
    assert len(finalists(records(*searched(100, 99.8, 99.7, 99.6)))) == 4
    assert len(finalists(records(*searched(100, 99.8, 99.7, 99.6, 99.5, 99.4)))) == 4


def test_who_does_not_fit_or_differs_in_loss_is_no_finalist() -> None:
    launches = [*searched(80, 70, 60), completed(ident(4), 99, first_loss=6.0)]
    launches.append(completed(ident(5), 98, peak_memory_bytes=101 * MIB))
    assert finalists(records(*launches)) == [ident(1), ident(2)]
    assert finalists(records(*launches), allow_loss_difference=True) == [ident(4), ident(1)]
    assert finalists(records(*launches), excluded={ident(1)}) == [ident(2), ident(3)]


def test_paired_differences_decide_under_drift() -> None:
    """Rounds differ by 20 %, the pairs do not: 5 % is told apart all the same."""
    outcome = select(
        *searched(100, 104),
        *confirmed(ident(1), (105.0, 84.5, 126.0)),
        *confirmed(ident(2), (100.0, 80.0, 120.0), peak_memory_bytes=10 * MIB),
    )
    assert (outcome.winner, outcome.confirmed, outcome.runner_up) == (ident(1), True, ident(2))
    assert outcome.samples_per_s == pytest.approx((105.0 * 84.5 * 126.0) ** (1 / 3))
    assert outcome.samples_per_s_low < outcome.samples_per_s < outcome.samples_per_s_high
    assert outcome.runner_up_reason.startswith("-5.0 % in speed against the winner in confirmation (95 % interval -5.")


def tie_of(small_pressure: bool) -> Selection:
    return select(
        completed(ident(1), 100.0, peak_memory_bytes=60 * MIB),
        completed(ident(2), 99.0, peak_memory_bytes=50 * MIB),
        *confirmed(ident(1), (100.0, 101.0, 99.0)),
        *confirmed(ident(2), (99.0, 101.5, 98.0), memory_pressure=small_pressure),
    )


def test_a_tie_goes_to_less_memory() -> None:
    outcome = tie_of(small_pressure=False)
    assert outcome.winner == ident(2)
    assert outcome.runner_up_reason.endswith("a tie, and it needs 10.0 MiB more memory")
    assert "+0.5 % in speed against the winner in confirmation" in outcome.runner_up_reason


def test_memory_pressure_loses_a_tie() -> None:
    outcome = tie_of(small_pressure=True)
    assert outcome.winner == ident(1)
    assert "short of memory" in outcome.lost[ident(2)]


def test_a_finalist_that_fails_in_confirmation_is_demoted() -> None:
    broken = failed(ident(2), TrialStatus.OOM, phase=Phase.CONFIRM, round=3, reason="out of memory")
    outcome = select(
        *searched(100, 120, 90),
        *confirmed(ident(1), (100.0, 101.0, 102.0)),
        *confirmed(ident(2), (120.0, 121.0)),
        broken,
    )
    assert (outcome.winner, outcome.confirmed) == (ident(1), True)
    assert outcome.lost[ident(2)] == "demoted in confirmation: OOM in round 3: out of memory"
    assert outcome.lost[ident(3)].startswith("-10.0 % in speed against the winner in the search")
    assert outcome.lost[ident(3)].endswith("not confirmed")


def test_an_interrupted_confirmation_leaves_an_unconfirmed_best() -> None:
    cut = failed(ident(1), TrialStatus.TIMED_OUT, phase=Phase.CONFIRM, round=2)
    outcome = select(*searched(100, 90), *confirmed(ident(1), (100.0,)), cut)
    assert (outcome.winner, outcome.confirmed, outcome.samples_per_s) == (ident(1), False, 100.0)
    assert outcome.samples_per_s_low is None


def test_every_loser_has_a_reason_and_no_winner_is_no_error() -> None:
    rows = [plan_row(1, status=TrialStatus.PRUNED, reason="needs 9 GiB"), plan_row(2)]
    launches = [failed(ident(2), TrialStatus.FAILED, failure_kind=FailureKind.HANG, reason="no step in 30 s")]
    outcome = choose_winner(derive_records(sweep(*rows), measurements=launches), measurements=launches)
    assert (outcome.winner, outcome.runner_up, outcome.pareto_front) == (None, None, ())
    assert outcome.lost == {ident(1): "PRUNED: needs 9 GiB", ident(2): "FAILED (hang): no step in 30 s"}


def test_a_flagged_loss_cannot_win_and_is_listed_with_what_it_gives() -> None:
    launches = [*searched(100, 90), completed(ident(3), 125, first_loss=6.0)]
    outcome = select(*launches)
    assert outcome.winner == ident(1)
    assert [(each.candidate_id, each.over_winner) for each in outcome.loss_flagged] == [(ident(3), 0.25)]
    assert select(*launches, allow_loss_difference=True).winner == ident(3)


def test_pareto_front_keeps_who_is_beaten_by_nobody_in_both() -> None:
    peaks = {1: 80, 2: 60, 3: 70, 4: 40, 5: 101}
    rates = {1: 100, 2: 90, 3: 85, 4: 50, 5: 120}
    launches = [completed(ident(n), rates[n], peak_memory_bytes=peaks[n] * MIB) for n in peaks]
    assert pareto_front(records(*launches)) == (ident(1), ident(2), ident(4))


def test_a_selection_survives_json() -> None:
    outcome = tie_of(small_pressure=False)
    assert from_dict(Selection, to_dict(outcome)) == outcome
