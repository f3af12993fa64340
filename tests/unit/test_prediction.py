"""Predicted against measured peaks in a report."""

from __future__ import annotations

from typing import Any

from raysweep.results.prediction import pairs_of, render_prediction
from raysweep.results.records import TrialRecord
from raysweep.trial import TrialStatus


def record(predicted: int | None, measured: int | None) -> TrialRecord:
    values: dict[str, Any] = dict(
        candidate_id="s0-k0-b1-g1",
        zero_stage=0,
        activation_checkpoint_interval=0,
        micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=1,
        world_size=2,
        global_batch_size=2,
        status=TrialStatus.COMPLETED if measured else TrialStatus.PRUNED,
        reason="too large",
    )
    return TrialRecord(**values, estimated_memory_bytes=predicted, peak_memory_bytes=measured)


def test_only_candidates_with_both_figures_are_compared() -> None:
    assert pairs_of([record(100, None), record(None, 100)]) == []
    assert render_prediction([record(100, None)]) == ""


def test_errors_and_calibration_are_told() -> None:
    said = render_prediction([record(1000 * each, 1100 * each) for each in range(1, 6)])
    assert said == (
        "predicted against measured peak, 5 candidates: median error 9.091%, largest 9.09%; measured = 1.1000 x "
        "predicted, within 0.00% for a further candidate with a probability of 83%"
    )
