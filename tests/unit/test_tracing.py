"""The driver's side of the trace: what is asked of the subprocess, kept, interpolated, and said where it fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import write_sweep

from raysweep.estimate import tracing
from raysweep.estimate.trace_self_test import compared
from raysweep.estimate.trace_server import TraceServerDied
from raysweep.estimate.tracing import legal_candidates, trace_job, trace_sweep
from raysweep.fidelity import Fidelity
from raysweep.memory import CLOSED_FORM, RELATIVE_BAND
from raysweep.plan import make_plan
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trace import RankTrace, StandIn, TraceJob
from raysweep.trace_estimate import INTERPOLATED, TRACED
from raysweep.trial import TrialStatus


class ScriptedServer:
    """Answers with peaks that grow with the micro-batch and, at stage 2, with the rank."""

    def __init__(self, **_: Any) -> None:
        self.jobs: list[TraceJob] = []
        self.dies = False

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def trace(self, jobs: Sequence[TraceJob], *, store: str | None = None) -> Iterator[tuple[int, RankTrace]]:
        if self.dies:
            raise TraceServerDied("no compiler")
        self.jobs += jobs
        for index, job in reversed(list(enumerate(jobs))):
            yield index, self.answer(job)

    def answer(self, job: TraceJob) -> RankTrace:
        candidate = job.request.candidate
        if candidate.zero_stage == 3:
            return RankTrace(rank=job.rank, error="aten.nonzero has a result that depends on numbers")
        kinds = {
            "forward": {"parameters": 1000, "activations": 100 * candidate.micro_batch_size_per_gpu},
            "backward": {"parameters": 1000, "gradients": 50},
            "step": {"parameters": 1000 + 7 * job.rank},
        }
        guessed = StandIn(operator="item", place="mine.py:3 f", value="1.0", count=1, expected=False)
        return RankTrace(
            rank=job.rank,
            phase_peaks_bytes={phase: sum(terms.values()) for phase, terms in kinds.items()},
            phase_kinds_bytes=kinds,
            ranks_of_a_kind=(1, 0) if candidate.zero_stage == 2 else (0,),
            stand_ins=(guessed,) if candidate.zero_stage == 1 else (),
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedServer:
    scripted = ScriptedServer()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tracing, "TraceServer", lambda **_: scripted)
    monkeypatch.setattr(tracing, "self_test", lambda server: "")
    monkeypatch.setattr(tracing, "fidelity_of", lambda server, sweep: Fidelity())
    return scripted


def sweep_of(folder: Path, **changes: Any) -> Sweep:
    space = {"space.micro_batch_size_per_gpu": [1, 2, 4, 8, 16], "global_batch_size": 64}
    return load_sweep(write_sweep(folder, **{**space, **changes}))


def traced(sweep: Sweep) -> tracing.Traces:
    return trace_sweep(sweep, legal_candidates(sweep), progress=lambda done, needed: None)


def test_members_on_a_line_are_interpolated_and_the_peak_is_the_largest_phase(
    server: ScriptedServer, tmp_path: Path
) -> None:
    found = traced(sweep_of(tmp_path, **{"space.zero_stage": [0], "space.activation_checkpoint_interval": [0]}))
    asked = sorted(job.request.candidate.micro_batch_size_per_gpu for job in server.jobs)
    assert asked == [1, 4, 16]
    assert {key: each.peak_bytes for key, each in found.estimates.items()} == {
        "s0-k0-b1-g32": 1100,
        "s0-k0-b2-g16": 1200,
        "s0-k0-b4-g8": 1400,
        "s0-k0-b8-g4": 1800,
        "s0-k0-b16-g2": 2600,
    }
    assert found.estimates["s0-k0-b2-g16"].source == INTERPOLATED
    assert found.estimates["s0-k0-b4-g8"].source == TRACED
    assert set(found.ranks) == {"s0-k0-b1-g32", "s0-k0-b4-g8", "s0-k0-b16-g2"}


def test_one_rank_of_each_kind_is_traced_and_the_fullest_counts(server: ScriptedServer, tmp_path: Path) -> None:
    found = traced(sweep_of(tmp_path, **{"space.zero_stage": [2], "space.micro_batch_size_per_gpu": [1]}))
    assert sorted(job.rank for job in server.jobs) == [0, 0, 1, 1]
    assert sum(found.estimates["s2-k0-b1-g32"].phases["step"].values()) == 1007


def test_traces_are_kept(server: ScriptedServer, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, **{"space.zero_stage": [0, 2]})
    first, asked = traced(sweep), len(server.jobs)
    assert traced(sweep).estimates == first.estimates
    assert len(server.jobs) == asked


def test_what_cannot_be_traced_keeps_the_closed_form_and_is_named(server: ScriptedServer, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, **{"space.zero_stage": [0, 3]})
    found = traced(sweep)
    assert any("closed form is used: aten.nonzero" in note for note in found.notes)
    plan = make_plan(sweep, traced=found.estimates)
    sources = {
        stage: {plan.estimates[c.candidate_id].source for c in plan.admitted if c.zero_stage == stage}
        for stage in (0, 3)
    }
    assert sources[0] <= {TRACED, INTERPOLATED} and sources[3] == {CLOSED_FORM}


def test_made_up_numbers_of_the_models_code_are_named(server: ScriptedServer, tmp_path: Path) -> None:
    found = traced(sweep_of(tmp_path, **{"space.zero_stage": [1]}))
    assert any("mine.py:3 f" in note for note in found.notes)


def test_a_plan_prunes_by_the_trace(server: ScriptedServer, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, **{"space.zero_stage": [0], "memory_budget": 1500})
    plan = make_plan(sweep, traced=traced(sweep).estimates)
    pruned = {row.candidate.micro_batch_size_per_gpu for row in plan.rows if row.status is TrialStatus.PRUNED}
    assert pruned == {8, 16}


def test_a_failed_start_up_test_falls_back(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "self_test", lambda server: "they differ")
    found = traced(sweep_of(tmp_path))
    assert found.estimates == {} and "they differ" in found.notes[0]


def test_where_a_trace_parts_from_a_run_it_is_corrected_and_said(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = Fidelity(parts_at="operator 7: aten.mul in a run, aten.add in a trace", ratios={"forward": 1.5})
    monkeypatch.setattr(tracing, "fidelity_of", lambda server, sweep: parted)
    found = traced(sweep_of(tmp_path, **{"space.zero_stage": [0]}))
    estimate = found.estimates["s0-k0-b2-g16"]
    assert estimate.phases["forward"] == {"parameters": 1000, "activations": 300}
    assert estimate.band == RELATIVE_BAND["cpu"]
    assert any("operator 7: aten.mul" in note for note in found.notes)


def test_a_subprocess_that_dies_falls_back(server: ScriptedServer, tmp_path: Path) -> None:
    server.dies = True
    found = traced(sweep_of(tmp_path))
    assert found.estimates == {} and "no compiler" in found.notes[0]


def test_a_job_is_the_launch_less_the_accumulation_beyond_two(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    candidate = next(each for each in legal_candidates(sweep) if each.candidate_id == "s2-k2-b4-g8")
    request = trace_job(sweep, candidate, rank=1).request
    assert request.candidate.gradient_accumulation_steps == 2
    assert request.ds_config["gradient_accumulation_steps"] == 2
    assert request.ds_config["zero_optimization"]["reduce_bucket_size"] == 100_000


def test_the_start_up_test_finds_a_difference() -> None:
    real = RankTrace(rank=0, phase_peaks_bytes={"forward": 10_000, "step": 20_000})
    assert compared([real], [real]) == ""
    off = RankTrace(rank=0, phase_peaks_bytes={"forward": 10_000, "step": 20_100})
    assert "rank 0 held 20000 bytes in step, and 20100 in the trace" in compared([off], [real])
    assert compared([RankTrace(rank=0, error="no")], [real]) == "no"
