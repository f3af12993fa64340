"""The closed form against real runs, and the terms that decide a peak."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from closed_form_error import MEASURED, candidate_of, workload_of

from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.serde import from_dict, to_dict

RUNS = json.loads(MEASURED.read_text())["runs"]


def estimate(run: dict[str, Any], *, device: str = "cpu", **settings: Any) -> MemoryEstimate:
    chosen = {"reduce_bucket_size": run["reduce_bucket_size"], **settings}
    return estimate_memory(candidate_of(run), workload_of(run, device=device), ZeroSettings(**chosen))


def the_run(**fields: Any) -> dict[str, Any]:
    return next(run for run in RUNS if fields.items() <= run.items())


def relative_errors(runs: list[dict[str, Any]]) -> list[float]:
    return [abs(estimate(run).peak_bytes / run["peak_memory_bytes"] - 1) for run in runs]


def test_quickstart_space_is_predicted_within_two_percent() -> None:
    quickstart = [run for run in RUNS if run["precision"] == "bf16" and run["world_size"] == 2 and run["blocks"] == 4]
    assert len(quickstart) == 48
    assert max(relative_errors(quickstart)) <= 0.02
    assert statistics.median(relative_errors(quickstart)) <= 0.001


def test_every_measured_run_lies_within_the_band() -> None:
    errors = relative_errors(RUNS)
    assert statistics.median(errors) <= 0.02
    assert max(errors) <= 0.12
    assert all(
        guess.lower_bound_bytes <= run["peak_memory_bytes"] <= guess.upper_bound_bytes
        for run, guess in ((run, estimate(run)) for run in RUNS)
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_peak_is_the_largest_phase_and_never_a_sum_of_phases(precision: str) -> None:
    guess = estimate({**RUNS[0], "precision": precision})
    totals = {phase: sum(terms.values()) for phase, terms in guess.phases.items()}
    assert guess.peak_bytes == max(totals.values()) == totals[guess.peak_phase]
    assert [*totals][:: len(totals) - 1] == ["forward", "step"]


def test_step_at_stage_0_holds_20_bytes_a_parameter() -> None:
    run = the_run(zero_stage=0, activation_checkpoint_interval=1, micro_batch_size_per_gpu=1, precision="bf16")
    parameters, largest = 3_257_856, 4 * 256**2
    guess = estimate(run)
    assert guess.peak_phase == "step"
    assert guess.peak_bytes == 20 * parameters + 8 * largest
    assert guess.phases["step"]["optimizer_states"] == 12 * parameters


def test_default_bucket_dwarfs_a_small_model_at_stage_2() -> None:
    run = the_run(zero_stage=2, activation_checkpoint_interval=0, micro_batch_size_per_gpu=4, precision="bf16")
    bucket_bytes = estimate(run, reduce_bucket_size=500_000_000).phases["backward_first"]["reduce_bucket"]
    assert bucket_bytes == 1_000_000_000
    doubled = estimate(run, reduce_bucket_size=500_000_000, overlap_comm=True)
    assert doubled.phases["backward_first"]["reduce_bucket"] == 2 * bucket_bytes


def test_stage_3_gathers_no_more_than_may_live() -> None:
    run = the_run(zero_stage=3, activation_checkpoint_interval=0, micro_batch_size_per_gpu=4, precision="bf16")
    assert estimate(run).phases["forward"]["gathered_parameters"] == 2 * 3_257_856
    tight = estimate(run, stage3_max_live_parameters=1_000_000, stage3_prefetch_bucket_size=500_000)
    assert tight.phases["forward"]["gathered_parameters"] == 2 * 1_500_000


def test_fused_adam_on_cuda_has_no_temporaries_and_a_wider_band() -> None:
    run = the_run(zero_stage=1, activation_checkpoint_interval=1, micro_batch_size_per_gpu=1, precision="bf16")
    assert "optimizer_temporaries" in estimate(run).phases["step"]
    on_cuda = estimate(run, device="cuda")
    assert "optimizer_temporaries" not in on_cuda.phases["step"]
    assert on_cuda.lower_bound_bytes == round(on_cuda.peak_bytes / 1.25)


def test_settings_take_deepspeeds_defaults_for_what_a_config_leaves_out() -> None:
    settings = ZeroSettings.from_ds_config({"zero_optimization": {"stage": 3, "reduce_bucket_size": 2_000_000}})
    assert settings == ZeroSettings(reduce_bucket_size=2_000_000)
    assert settings.stage3_prefetch_bucket_size == 50_000_000
    assert settings.overlaps(3) and not settings.overlaps(2)
    assert ZeroSettings.from_ds_config({"data_types": {"grad_accum_dtype": "fp32"}}).fp32_grad_accumulation


def test_estimate_survives_a_trip_through_json() -> None:
    guess = estimate(RUNS[0])
    assert from_dict(MemoryEstimate, json.loads(json.dumps(to_dict(guess)))) == guess
