"""What a run has traced before it launches, what `--force` and `--audit` do with candidates that cannot fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from builders import write_sweep
from fakes import FakeLauncher

from raysweep.candidate import Candidate
from raysweep.cli.options import parse_share
from raysweep.estimate.tracing import Traces
from raysweep.memory import MemoryEstimate
from raysweep.plan import make_plan
from raysweep.search import pruning
from raysweep.search.observer import Observer
from raysweep.search.pruning import Pruning, audit, audit_sample, worth_tracing
from raysweep.search.requests import RequestMaker
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import Measurement, Phase, TrialStatus

TIGHT = "1MiB"
"""Of the tiny sweep's candidates some are below it, some above, and some between the bounds."""


def tight(folder: Path, **changes: Any) -> Sweep:
    return load_sweep(write_sweep(folder, **{"memory_budget": TIGHT, **changes}))


class Tracer:
    """Says of every candidate that it needs so many bytes."""

    def __init__(self, peak_bytes: int) -> None:
        self.asked: list[Candidate] = []
        self._peak_bytes = peak_bytes

    def __call__(self, sweep: Sweep, candidates: Sequence[Candidate]) -> Traces:
        self.asked += candidates
        estimate = MemoryEstimate(
            phases={"step": {"x": self._peak_bytes}},
            peak_phase="step",
            peak_bytes=self._peak_bytes,
            band=0.002,
            device="cpu",
            source="trace",
        )
        return Traces(estimates={each.candidate_id: estimate for each in candidates}, notes=("traced",))


def planned(sweep: Sweep, how: Pruning) -> Any:
    return how.plan(sweep, device_memory_bytes=None, unsupported_precision="", note=lambda text: None)


def test_auto_traces_what_the_closed_form_leaves_open_in_a_long_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = tight(tmp_path)
    plan = make_plan(sweep)
    assert worth_tracing(sweep, plan) == []
    monkeypatch.setattr(pruning, "TRACE_ABOVE_S", plan.cost.wall_s - 1)
    chosen = worth_tracing(sweep, plan)
    assert {each.candidate_id for each in chosen} == {
        candidate_id
        for candidate_id, bound in plan.estimates.items()
        if bound.upper_bound_bytes > 1024**2 >= bound.lower_bound_bytes
    }
    assert 0 < len(chosen) < len(plan.admitted)


@pytest.mark.parametrize(("model", "share"), [("trace", 1.0), ("closed_form", 0.0)])
def test_the_file_may_ask_for_all_traces_or_none(tmp_path: Path, model: str, share: float) -> None:
    sweep = tight(tmp_path, memory_model=model)
    plan = make_plan(sweep)
    assert len(worth_tracing(sweep, plan)) == share * len(plan.rows)


def test_a_trace_decides_over_the_closed_form_and_says_so(tmp_path: Path) -> None:
    sweep = tight(tmp_path, memory_model="trace")
    tracer = Tracer(peak_bytes=2 * 1024**2)
    kept = make_plan(sweep).admitted[0].candidate_id

    def trace_others(sweep: Sweep, candidates: Sequence[Candidate]) -> Traces:
        return tracer(sweep, [each for each in candidates if each.candidate_id != kept])

    sweep, plan = planned(sweep, Pruning(tracer=trace_others))
    pruned = [row for row in plan.rows if row.status is TrialStatus.PRUNED and row.reason.endswith(", by trace")]
    assert len(pruned) == len(tracer.asked) == len(plan.rows) - 1
    assert sweep.notes[-1] == "traced"


def test_force_prunes_nothing_and_traces_nothing(tmp_path: Path) -> None:
    tracer = Tracer(peak_bytes=2 * 1024**2)
    _, plan = planned(tight(tmp_path, memory_model="trace"), Pruning(force=True, tracer=tracer))
    assert len(plan.admitted) == len(plan.rows) and tracer.asked == []


def test_an_audit_launches_a_seeded_share_of_the_pruned(tmp_path: Path) -> None:
    sweep = tight(tmp_path)
    plan = make_plan(sweep)
    pruned = {row.candidate.candidate_id for row in plan.rows if row.status is TrialStatus.PRUNED}
    sample = audit_sample(plan, share=0.05, seed=0)
    assert len(sample) == 1 and sample[0].candidate_id in pruned
    assert sample == audit_sample(plan, share=0.05, seed=0)
    assert len(audit_sample(plan, share=1.0, seed=0)) == len(pruned)
    assert audit_sample(plan, share=0.0, seed=0) == []


def test_an_audit_names_what_was_pruned_wrongly(tmp_path: Path) -> None:
    sweep = tight(tmp_path)
    requests = RequestMaker(sweep=sweep, memory_budget_bytes=1024**2)
    candidates = [row.candidate for row in make_plan(sweep, prunes=False).rows][:2]
    larger = replace(candidates[0], micro_batch_size_per_gpu=4)
    seen: list[Measurement] = []
    launcher = FakeLauncher().runs_out_of_memory_above(2)
    said = audit(launcher, [candidates[0], larger], requests, Observer(), on_measured=seen.extend)
    assert said == f"audit: 2 pruned candidates were launched; {candidates[0].candidate_id} fitted: pruned wrongly"
    assert {each.phase for each in seen} == {Phase.AUDIT}
    assert audit(launcher, [larger], requests, Observer(), on_measured=seen.extend).endswith("; none fitted")


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0", 0.0)])
def test_a_share_is_written_in_percent_or_not(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["5", "-1%", "some"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write for example 5%"):
        parse_share(text)
