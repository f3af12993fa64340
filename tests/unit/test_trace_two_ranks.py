"""Traces against two real ranks: every phase to the byte, and every collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import write_sweep
from memory_accuracy import predict
from memory_configurations import FAMILIES, configurations
from real_ranks import weigh_for_real
from worker_builders import request_for

from raysweep.budget import MeasurementWindow
from raysweep.estimate.tracing import legal_candidates, trace_sweep
from raysweep.plan import make_plan
from raysweep.sweep_file import load_sweep
from raysweep.trace_estimate import TRACED
from raysweep.trial import LaunchRequest

PLAIN: list[dict[str, Any]] = [
    {"stage": 2, "interval": 2, "accumulation": 2},
    {"stage": 3, "interval": 1, "accumulation": 1},
]


def requests() -> list[LaunchRequest]:
    window = MeasurementWindow(memory_pass_steps=6)
    return [request_for(**case, hidden=64, sequence=32, world_size=2, window=window) for case in PLAIN]


def compare(asked: list[LaunchRequest], folder: Path) -> None:
    predicted = predict(asked, processes=2)
    measured = weigh_for_real(asked, world_size=2, folder=folder)
    for request, traces, reports in zip(asked, predicted, measured, strict=True):
        name = f"{request.workload.model['kind']} {request.candidate.candidate_id} {request.workload.precision}"
        for trace, report in zip(sorted(traces, key=lambda trace: trace.rank), reports, strict=True):
            assert trace.error == "", name
            assert dict(trace.phase_peaks_bytes) == report["phases"], name
            assert trace.resting_bytes == report["resting"], name
            collectives = {each.name: [each.count, each.size_bytes] for each in trace.collectives}
            assert collectives == report["collectives"], name
            assert trace.build_peak_bytes == pytest.approx(report["build"], rel=0.03), name


@pytest.mark.timeout(600)
def test_the_built_in_model_is_equal_to_the_byte(tmp_path: Path) -> None:
    compare(requests(), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_models_and_stages_are_equal_to_the_byte(tmp_path: Path) -> None:
    compare([request for _, request in configurations([2], list(FAMILIES))], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_default_buckets_outweigh_a_small_model_b34(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 million parameters, two ranks, buckets of 5e8 elements: stages 1 to 3 need more than 0, which is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    space = {"zero_stage": [0, 1, 2, 3], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [1]}
    model = {"kind": "gpt", "blocks": 4, "hidden": 256, "heads": 4, "vocab_size": 8192}
    sweep = load_sweep(write_sweep(tmp_path, model=model, deepspeed=None, space=space, memory_budget="512MiB"))
    traces = trace_sweep(sweep, legal_candidates(sweep), progress=lambda done, needed: None)
    plan = make_plan(sweep, traced=traces.estimates)
    peaks = {row.candidate.zero_stage: row.estimated_memory_bytes or 0 for row in plan.rows}
    assert {plan.estimates[row.candidate.candidate_id].source for row in plan.rows} == {TRACED}
    bucket_bytes = 2 * 500_000_000
    assert min(peaks[1], peaks[2], peaks[3]) > bucket_bytes > peaks[0]
    assert [candidate.zero_stage for candidate in plan.admitted] == [0]
