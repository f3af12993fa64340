"""Two sweeps beside each other: drift is told from moves, and what changed around them is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_candidate
from export_builders import finished_sweep, write_journal
from results_builders import MIB, completed, confirmed, failed, ident, records
from typer.testing import CliRunner

from raysweep.cli.main import app
from raysweep.results.compare import Comparison, compare, differences
from raysweep.results.records import TrialRecord
from raysweep.trial import MemoryKind, TrialStatus


def _sweep(*rates: float) -> list[TrialRecord]:
    return records(*(completed(ident(number), rate) for number, rate in enumerate(rates, start=1)))


def _moved(comparison: Comparison) -> list[str]:
    return [move.before.candidate_id for move in comparison.moves if move.beyond_noise]


def test_what_moves_all_alike_is_drift_and_no_move() -> None:
    comparison = compare(_sweep(100, 90, 80, 70, 60), _sweep(80, 72, 64, 56, 48))
    assert comparison.drift == pytest.approx(-0.2) and comparison.spread == pytest.approx(0, abs=1e-9)
    assert _moved(comparison) == []


def test_one_that_moves_against_the_others_is_named() -> None:
    comparison = compare(_sweep(100, 90, 80, 70, 60, 50), _sweep(101, 89, 81, 69, 61, 30))
    assert _moved(comparison) == [ident(6)]


def test_noise_is_the_spread_of_all() -> None:
    comparison = compare(_sweep(100, 100, 100, 100, 100, 100), _sweep(80, 120, 90, 110, 85, 125))
    assert _moved(comparison) == [] and comparison.spread is not None and comparison.spread > 0.1


def test_with_few_in_common_the_intervals_decide() -> None:
    comparison = compare(_sweep(100, 90), _sweep(80, 90.1))
    assert comparison.spread is None and _moved(comparison) == [ident(1)]


def test_confirmed_figures_compare_with_confirmed_ones() -> None:
    before = records(completed(ident(1), 100), *confirmed(ident(1), (100.0, 101.0, 99.0)))
    after = records(completed(ident(1), 50), *confirmed(ident(1), (100.0, 99.0, 101.0)))
    (move,) = compare(before, after).moves
    assert move.confirmed and not move.beyond_noise and move.log_ratio.centre == pytest.approx(0, abs=1e-6)
    (half,) = compare(before, _sweep(50)).moves
    assert not half.confirmed and half.beyond_noise


def test_statuses_peaks_and_candidates_that_differ_are_named() -> None:
    before = records(completed(ident(1)), completed(ident(2)), completed(ident(3)))
    oom = failed(ident(2), TrialStatus.OOM, memory_kind=MemoryKind.DEVICE, reason="too large")
    after = records(completed(ident(1), peak_memory_bytes=60 * MIB), oom, completed(ident(4)))
    found = compare(before, after)
    assert [pair[0].candidate_id for pair in found.ended_otherwise] == [ident(2)]
    assert [pair[0].candidate_id for pair in found.peaks_moved] == [ident(1)]
    assert (found.only_in_first, found.only_in_second) == ([ident(3)], [ident(4)])


def test_nothing_in_common_is_said() -> None:
    assert compare(_sweep(1), []).drift is None


def test_differences_are_dotted() -> None:
    first, second = {"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": 1, "c": 3}, "e": 1}
    assert differences(first, second) == [("a.c", 2, 3), ("d", 1, None), ("e", None, 1)]


def test_the_command_prints_all_of_it(tmp_path: Path) -> None:
    others = [make_candidate(micro_batch_size_per_gpu=size) for size in (1, 2, 4, 8)]
    contents = finished_sweep(others=others)
    first = write_journal(tmp_path / "first", contents)
    slow = others[0].candidate_id
    launches = tuple(
        replace(each, figures=replace(each.figures, samples_per_s=40.0, step_time_s_median=0.4))
        if each.candidate_id == slow and each.figures
        else each
        for each in contents.measurements
    )
    sweep = replace(contents.sweep, versions={**contents.sweep.versions, "torch": "2.14.0"})
    second = write_journal(tmp_path / "second", replace(contents, sweeps=(sweep,), measurements=launches))
    ran = CliRunner().invoke(app, ["compare", str(first), str(second)])
    assert ran.exit_code == 0, ran.output
    assert "versions.torch: 2.13.0+cpu -> 2.14.0" in ran.output and "5 measured in both" in ran.output
    assert "Moved beyond the noise: 1\n" in ran.output and "90.00      -> 40.00  -55.6 %" in ran.output
    same = CliRunner().invoke(app, ["compare", str(first), str(first)])
    assert "Workload, budget and versions are the same." in same.output
    assert "No rate moved beyond the noise." in same.output


def test_the_command_says_where_there_is_nothing(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path)])
    assert ran.exit_code == 1 and "no results here" in ran.output
