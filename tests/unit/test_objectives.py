"""The objectives of a sweep: who wins by each, and what a sweep file may say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_report, make_workload, write_sweep
from results_builders import MIB, completed, confirmed, ident, plan_row, records, sweep

from raysweep.errors import ConfigError
from raysweep.measurement import reduce_reports
from raysweep.objective import Goal, Objective
from raysweep.results.finalists import finalists
from raysweep.results.report import render_selection
from raysweep.results.select import Selection, choose_winner
from raysweep.results.worth import value
from raysweep.serde import from_dict, to_dict
from raysweep.sweep_file import load_sweep
from raysweep.trial import Measurement, SweepStart

LEAN = Objective(goal=Goal.PEAK_MEMORY, at_least_samples_per_s=80.0)
TOKENS = Objective(goal=Goal.NONPADDING_TOKENS_PER_S)


def chosen(*launches: Measurement, objective: Objective) -> Selection:
    return choose_winner(records(*launches), measurements=launches, objective=objective)


def test_the_least_memory_that_is_fast_enough_wins_and_the_front_is_kept() -> None:
    launches = [
        completed(ident(1), 100, peak_memory_bytes=60 * MIB),
        completed(ident(2), 85, peak_memory_bytes=40 * MIB),
        completed(ident(3), 70, peak_memory_bytes=20 * MIB),
    ]
    selection = chosen(*launches, objective=LEAN)
    assert selection.winner == ident(2) and selection.value == 40 * MIB
    assert "20.0 MiB more memory" in selection.lost[ident(1)]
    assert "below the 80" in selection.lost[ident(3)]
    assert selection.pareto_front == (ident(1), ident(2), ident(3))
    assert "40.0 MiB at 80 samples/s or more" in render_selection(selection)


def test_a_lean_finalist_that_confirms_too_slow_gives_its_place() -> None:
    launches = [completed(ident(1), 100), completed(ident(2), 85, peak_memory_bytes=40 * MIB)]
    assert finalists(records(*launches), objective=LEAN) == [ident(2), ident(1)]
    rounds = [*confirmed(ident(1), (99, 99, 99)), *confirmed(ident(2), (78, 78, 78), peak_memory_bytes=40 * MIB)]
    selection = chosen(*launches, *rounds, objective=LEAN)
    assert selection.winner == ident(1) and selection.confirmed
    assert "in confirmation is below" in selection.lost[ident(2)]


def test_where_nobody_is_fast_enough_the_fastest_is_named() -> None:
    selection = chosen(completed(ident(1), 70), objective=LEAN)
    assert selection.winner is None
    assert ident(1) in selection.none_because and "70.00" in selection.none_because
    assert selection.none_because in render_selection(selection)


def test_tokens_without_padding_may_reverse_the_order_of_samples() -> None:
    launches = [
        completed(ident(1), 100, nonpadding_tokens_per_s=100 * 60.0),
        completed(ident(2), 90, nonpadding_tokens_per_s=90 * 100.0),
    ]
    assert chosen(*launches, objective=Objective()).winner == ident(1)
    selection = chosen(*launches, objective=TOKENS)
    assert selection.winner == ident(2) and selection.value == pytest.approx(9000)
    assert "tokens/s without padding" in selection.lost[ident(1)]
    assert finalists(records(*launches), objective=TOKENS)[0] == ident(2)


def test_records_without_counted_tokens_take_all_of_them() -> None:
    assert value(records(completed(ident(1), 100))[0], TOKENS) == pytest.approx(100 * 128)


def test_samples_for_money_are_the_rate_over_the_price_of_all_workers() -> None:
    objective = Objective(goal=Goal.SAMPLES_PER_CURRENCY_UNIT, price_per_worker_hour=2.5, currency="EUR")
    selection = chosen(completed(ident(1), 100), objective=objective)
    assert selection.value == pytest.approx(100 * 3600 / (2.5 * 2))
    assert "72000 samples per EUR" in render_selection(selection)


def test_tokens_are_counted_over_all_ranks_and_steps() -> None:
    reports = [make_report(rank, nonpadding_tokens=8 * (50 + 10 * rank)) for rank in range(2)]
    shown = reduce_reports(reports, workload=make_workload(), global_batch_size=8)
    assert shown.nonpadding_tokens_per_s == pytest.approx((50 + 60) / 0.05)
    unmasked = reduce_reports([make_report(0), make_report(1)], workload=make_workload(), global_batch_size=8)
    assert unmasked.nonpadding_tokens_per_s == unmasked.tokens_per_s


def test_a_bare_goal_and_a_section_are_read(tmp_path: Path) -> None:
    bare = load_sweep(write_sweep(tmp_path, objective="nonpadding_tokens_per_s"))
    assert bare.file.objective.noun() == TOKENS
    section = {"goal": "peak_memory", "at_least_samples_per_s": 80}
    assert load_sweep(write_sweep(tmp_path, objective=section)).file.objective.noun() == LEAN
    assert load_sweep(write_sweep(tmp_path)).file.objective.noun() == Objective()


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("fastest", "samples_per_s"),
        ("peak_memory", "at_least_samples_per_s"),
        ({"goal": "samples_per_currency_unit"}, "price_per_worker_hour"),
        ({"goal": "samples_per_s", "price_per_worker_hour": 2}, "is for goal samples_per_currency_unit only"),
        ({"gaol": "samples_per_s"}, "objective.goal"),
    ],
)
def test_an_objective_that_lacks_something_is_refused(tmp_path: Path, objective: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_sweep(write_sweep(tmp_path, objective=objective))


def test_the_start_of_an_older_sweep_has_the_default_objective() -> None:
    plain = to_dict(sweep(plan_row(1)))
    del plain["objective"]
    assert from_dict(SweepStart, plain).objective == Objective()
    lean = replace(sweep(plan_row(1)), objective=LEAN)
    assert from_dict(SweepStart, to_dict(lean)).objective == LEAN
