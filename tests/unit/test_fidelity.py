"""A tiny step, run and traced: where they part."""

from __future__ import annotations

from raysweep.fidelity import Fidelity, compare_steps, corrected
from raysweep.trace import RankTrace


def step(*operators: str, forward: int = 150, backward: int = 200) -> RankTrace:
    peaks = {"forward": forward, "backward": backward, "step": 100}
    return RankTrace(rank=0, operators=operators, phase_peaks_bytes=peaks, resting_bytes=100)


def test_the_same_operators_need_no_correction() -> None:
    same = step("aten.mm [(2, 3)]", "aten.add [(2, 3)]")
    found = compare_steps(same, same)
    assert found == Fidelity()
    assert corrected({"forward": {"activations": 7}}, found) == {"forward": {"activations": 7}}


def test_the_first_parting_is_named_and_the_bytes_above_rest_are_compared() -> None:
    real = step("aten.mm [(2, 3)]", "aten.add [(2, 3)]", backward=150)
    found = compare_steps(real, step("aten.mm [(2, 3)]", "aten.add [(2, 4)]", forward=200))
    assert found.parts_at == "operator 2: aten.add [(2, 3)] in a run, aten.add [(2, 4)] in a trace"
    assert found.ratios == {"forward": 0.5, "backward": 0.5}
    terms = {"forward": {"activations": 60, "parameters": 9}, "step": {"activations": 8}}
    assert corrected(terms, found) == {"forward": {"activations": 30, "parameters": 9}, "step": {"activations": 8}}


def test_a_step_that_goes_on_parts_at_its_next_operator() -> None:
    found = compare_steps(step("aten.mm"), step("aten.mm", "aten.tril"))
    assert found.parts_at == "operator 2: nothing in a run, aten.tril in a trace"


def test_what_could_not_be_run_is_unknown() -> None:
    assert compare_steps(RankTrace(rank=0, error="no data"), step()).unknown == "no data"
