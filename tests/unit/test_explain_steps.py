"""The winner's step taken apart: parts that add up to it, from a model that predicts what it has not seen."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from builders import make_workload
from export_builders import finished_sweep, large_sweep
from results_builders import completed, figures
from test_page import _Texts, facts

from raysweep.candidate import Candidate
from raysweep.page.facts import gather
from raysweep.page.html import html_report
from raysweep.page.markdown import markdown_report
from raysweep.results.journal import JournalContents
from raysweep.search.explain_steps import FEWEST_FITTED, MOST_FITTED, explain_steps
from raysweep.step_shares import KINDS
from raysweep.step_work import step_work
from raysweep.workload import gpt_shape
from raysweep.zero_settings import ZeroSettings

SECONDS_A_UNIT = {
    "compute_flops": 2e-11,
    "recompute_flops": 2e-11,
    "reduce_bytes": 1e-9,
    "gather_bytes": 1e-9,
    "optimizer_bytes": 3e-10,
    "steps": 5e-3,
}
"""The machine of these sweeps: what a step takes follows from its work by these alone."""


def _sweep(data_s: float | None = 0.01) -> JournalContents:
    shape = gpt_shape(blocks=4, hidden=256, vocab_size=256, positions=128, tied=True)
    load = make_workload(shape=shape, global_batch_size=16)
    candidates = [
        Candidate(
            zero_stage=stage,
            activation_checkpoint_interval=interval,
            micro_batch_size_per_gpu=size,
            gradient_accumulation_steps=8 // size,
        )
        for stage, interval, size in itertools.product((0, 1, 2, 3), (0, 1), (2, 4))
    ]
    contents = finished_sweep(
        candidates[5], workload=load, others=[each for each in candidates if each != candidates[5]]
    )
    launches = [completed(each.candidate_id, 16 / _seconds(each, load), data_s=data_s) for each in candidates]
    return replace(contents, measurements=tuple(launches))


def _seconds(candidate, load) -> float:
    work = step_work(candidate, load, ZeroSettings())
    return sum(seconds * getattr(work, name) for name, seconds in SECONDS_A_UNIT.items())


def test_the_parts_add_up_to_the_step_and_find_what_dominates() -> None:
    contents = _sweep()
    winner = gather(contents, name="x").selection.winner
    shares = explain_steps(contents, winner=winner)
    assert shares is not None and shares.candidate_id == winner
    assert set(shares.seconds) == set(KINDS)
    assert sum(shares.seconds.values()) == pytest.approx(shares.step_time_s)
    assert shares.seconds["data"] == 0.01
    assert max(shares.seconds, key=shares.seconds.__getitem__) == "compute"


def test_recompute_has_a_part_where_blocks_are_recomputed_only() -> None:
    contents = _sweep()
    plain, recomputing = (explain_steps(contents, winner=name) for name in ("s1-k0-b4-g2", "s1-k1-b4-g2"))
    assert plain is not None and recomputing is not None
    assert plain.seconds["recompute"] == 0
    assert 0.1 < recomputing.seconds["recompute"] / recomputing.seconds["compute"] < 0.6


def test_each_candidate_is_predicted_from_the_others() -> None:
    shares = explain_steps(_sweep(), winner="s1-k0-b4-g2")
    assert shares is not None and shares.fitted_to == 16
    errors = [abs(shares.predicted_s[each] / seen - 1) for each, seen in shares.measured_s.items()]
    assert 0 < max(errors) < 0.3  # seen ones would be met exactly, foreign ones not at all


def test_nothing_is_told_of_too_little() -> None:
    contents = _sweep()
    few = replace(contents, measurements=contents.measurements[: FEWEST_FITTED - 1])
    assert explain_steps(few, winner=few.measurements[0].candidate_id) is None
    assert explain_steps(contents, winner=None) is None


def test_a_large_sweep_is_fitted_to_some_of_it() -> None:
    contents = large_sweep(1000)
    winner = gather(contents, name="x").selection.winner
    shares = explain_steps(contents, winner=winner)
    assert shares is not None and shares.fitted_to == MOST_FITTED


def test_the_report_tells_the_parts_and_what_they_are() -> None:
    shown = gather(_sweep(), name="tiny", explain=explain_steps)
    text = _Texts(html_report(shown)).text
    assert "Where the winner's step goes" in text and "they were not timed one by one" in text
    assert "Getting the data was measured." in text and "16 candidates predicted from the others" in text
    unseen = gather(_sweep(data_s=None), name="tiny", explain=explain_steps)
    assert "Getting the data is among them" in _Texts(html_report(unseen)).text
    assert "recompute" in markdown_report(shown) and "Where the winner" not in _Texts(html_report(facts())).text


def test_figures_of_an_earlier_version_have_no_data_time() -> None:
    assert figures().data_s is None
