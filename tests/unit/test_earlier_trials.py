"""Trials of earlier sweeps: kept by kind, used where they promise enough, and left out where asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_candidate, write_sweep
from results_builders import completed

from raysweep.memory import MemoryEstimate
from raysweep.plan import SweepPlan, make_plan
from raysweep.results.records import TrialRecord, derive_records
from raysweep.search.earlier_trials import MOST_SWEEPS, EarlierTrials, earlier_trials, model_class
from raysweep.search.recorder import sweep_start
from raysweep.search.searchers import calibration_notes, prospects
from raysweep.sweep_file import Sweep, load_sweep

FACTOR = 1.2


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return load_sweep(write_sweep(tmp_path, search={"method": "guided"}))


def shown(sweep: Sweep, plan: SweepPlan, *, factor: float = FACTOR) -> list[TrialRecord]:
    """Every candidate with a peak that is `factor` times the prediction."""
    launches = [
        completed(name, peak_memory_bytes=round(factor * estimate.peak_bytes))
        for name, estimate in plan.estimates.items()
    ]
    return derive_records(sweep_start(sweep, plan), measurements=launches)


def test_a_later_sweep_starts_from_what_earlier_ones_showed(sweep: Sweep) -> None:
    plan, earlier = make_plan(sweep), earlier_trials(sweep.workload.model, device="cpu")
    before = {each.candidate.candidate_id: each for each in prospects(sweep, plan, earlier)}
    assert before == {each.candidate.candidate_id: each for each in prospects(sweep, plan)}
    assert calibration_notes(sweep, plan, earlier) == []
    earlier.keep(shown(sweep, plan), plan.estimates, sweep_sha256="a")
    for each in prospects(sweep, plan, earlier_trials(sweep.workload.model, device="cpu")):
        former = before[each.candidate.candidate_id]
        assert each.predicted_memory_bytes == pytest.approx(FACTOR * (former.predicted_memory_bytes or 0), rel=1e-3)
        assert each.memory_band == 0.01 < former.memory_band
    (note,) = calibration_notes(sweep, plan, earlier)
    assert "16 candidates of earlier sweeps (gpt on cpu, 2 workers)" in note and "1.2" in note
    assert "--no-calibration" in note and calibration_notes(sweep, plan, None) == []


def test_no_other_kind_of_device_model_or_workers_takes_them(sweep: Sweep) -> None:
    plan, earlier = make_plan(sweep), earlier_trials(sweep.workload.model, device="cpu")
    earlier.keep(shown(sweep, plan), plan.estimates, sweep_sha256="a")
    estimate = next(iter(plan.estimates.values()))
    assert earlier.of(estimate, world_size=2) is not None
    others = [replace(earlier, device="H200"), replace(earlier, model="LlamaConfig")]
    assert [each.of(estimate, world_size=2) for each in others] == [None, None]
    assert earlier.of(estimate, world_size=4) is None
    assert earlier.of(replace(estimate, source="trace"), world_size=2) is None
    assert earlier.of(estimate, world_size=2, attention="eager") is None
    eager = [replace(record, attn_implementation="eager") for record in shown(sweep, plan, factor=2.0)]
    earlier.keep(eager, plan.estimates, sweep_sha256="a")
    found = [earlier.of(estimate, world_size=2, attention=each) for each in (None, "eager")]
    assert [each.factor for each in found if each] == [pytest.approx(each, rel=1e-3) for each in (FACTOR, 2.0)]


def test_few_trials_promise_too_little(sweep: Sweep) -> None:
    plan, earlier = make_plan(sweep), earlier_trials(sweep.workload.model, device="cpu")
    estimate = next(iter(plan.estimates.values()))
    records = shown(sweep, plan)
    earlier.keep(records[:8], plan.estimates, sweep_sha256="a")
    assert earlier.of(estimate, world_size=2) is None
    earlier.keep(records[8:10], plan.estimates, sweep_sha256="b")
    found = earlier.of(estimate, world_size=2)
    assert found is not None and found.trials == 10


def test_a_sweep_that_runs_again_replaces_its_own_and_old_ones_go(sweep: Sweep) -> None:
    plan, earlier = make_plan(sweep), earlier_trials(sweep.workload.model, device="cpu")
    estimate = next(iter(plan.estimates.values()))
    earlier.keep(shown(sweep, plan, factor=3.0), plan.estimates, sweep_sha256="a")
    earlier.keep(shown(sweep, plan), plan.estimates, sweep_sha256="a")
    found = earlier.of(estimate, world_size=2)
    assert found is not None and found.trials == 16 and found.factor == pytest.approx(FACTOR, rel=1e-3)
    for number in range(MOST_SWEEPS):
        earlier.keep(shown(sweep, plan)[:1], plan.estimates, sweep_sha256=str(number))
    found = earlier.of(estimate, world_size=2)
    assert found is not None and found.trials == MOST_SWEEPS


def test_compiled_candidates_and_a_broken_file_say_nothing(tmp_path: Path) -> None:
    earlier = EarlierTrials(device="cpu", model="gpt", folder=tmp_path)
    estimate = MemoryEstimate(phases={}, peak_phase="step", peak_bytes=100, band=0.1, device="cpu")
    record = TrialRecord(
        candidate_id=make_candidate().candidate_id,
        zero_stage=2,
        activation_checkpoint_interval=0,
        micro_batch_size_per_gpu=2,
        gradient_accumulation_steps=1,
        world_size=2,
        global_batch_size=4,
        status=completed("x").status,
        samples_per_s=1.0,
        peak_memory_bytes=100,
        torch_compile=True,
    )
    earlier.keep([record], {record.candidate_id: estimate}, sweep_sha256="a")
    assert not list(tmp_path.iterdir())
    (tmp_path / "cpu-2.json").write_text("no JSON")
    assert earlier.of(estimate, world_size=2) is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"kind": "gpt"}, "gpt"),
        ({"kind": "hf", "config": None, "config_class": "LlamaConfig"}, "LlamaConfig"),
        ({"kind": "hf", "config": {"model_type": "t5"}, "config_class": None}, "t5"),
        ({"kind": "loop", "loop": "mine:train"}, "mine:train"),
    ],
)
def test_models_are_apart_by_their_class(model: dict[str, object], name: str) -> None:
    assert model_class(model) == name
