"""Traces against two real ranks: every phase to the byte, and every collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_accuracy import FAMILIES, configurations, predict
from real_ranks import weigh_for_real
from worker_builders import request_for

from raysweep.budget import MeasurementWindow
from raysweep.trial import LaunchRequest

PLAIN: list[dict[str, Any]] = [
    {"stage": 0, "interval": 0, "accumulation": 1, "precision": "fp32"},
    {"stage": 1, "interval": 1, "accumulation": 2},
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
def test_every_stage_of_the_built_in_model_is_equal_to_the_byte(tmp_path: Path) -> None:
    compare(requests(), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_other_models_are_equal_to_the_byte(tmp_path: Path) -> None:
    compare([request for _, request in configurations([2], list(FAMILIES))], tmp_path)
