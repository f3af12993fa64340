"""Known answers of the ZeRO arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_candidate, make_workload

from raysweep.units import gib
from raysweep.zero import (
    activation_bytes,
    deepspeed_traffic_bytes,
    model_state_bytes,
    model_state_terms,
    recompute_flops_share,
    sent_bytes_per_step,
    textbook_traffic_bytes,
)
from raysweep.zero_settings import ZeroSettings

P, N = 7_000_000_000, 8


@pytest.mark.parametrize(("zero_stage", "expected_gib"), [(0, 104.3), (1, 35.9), (2, 24.4), (3, 13.0)])
def test_model_states_of_seven_billion_parameters_on_eight_devices(zero_stage: int, expected_gib: float) -> None:
    assert gib(model_state_bytes(zero_stage, P, N)) == pytest.approx(expected_gib, abs=0.05)


def test_each_stage_divides_one_more_term() -> None:
    assert model_state_terms(1, P, N) == {"parameters": 2 * P, "gradients": 2 * P, "optimizer_states": 12 * P / N}
    assert model_state_terms(2, P, N)["gradients"] == 2 * P / N
    assert model_state_terms(3, P, N)["parameters"] == 2 * P / N


@pytest.mark.parametrize(("interval", "expected_gib", "extra_flops"), [(0, 16.0, 0), (1, 1.0, 1 / 3), (2, 8.5, 1 / 6)])
def test_activations_and_their_price(interval: int, expected_gib: float, extra_flops: float) -> None:
    size_bytes = activation_bytes(layers=32, hidden=4096, sequence_length=4096, micro_batch=1, interval=interval)
    assert gib(size_bytes) == expected_gib
    assert recompute_flops_share(32, interval) == pytest.approx(extra_flops)


@pytest.mark.parametrize(("zero_stage", "per_parameter"), [(0, 4), (1, 4), (2, 4), (3, 6)])
def test_textbook_traffic(zero_stage: int, per_parameter: int) -> None:
    assert textbook_traffic_bytes(zero_stage, P, N) == per_parameter * P * 7 / 8


@pytest.mark.parametrize(("zero_stage", "per_parameter"), [(0, 4), (1, 6), (2, 4 * 3 + 2)])
def test_deepspeed_traffic_with_three_accumulation_steps(zero_stage: int, per_parameter: int) -> None:
    assert deepspeed_traffic_bytes(zero_stage, P, N, gradient_accumulation_steps=3) == per_parameter * P * 7 / 8


def test_stage_3_sends_more_when_parameters_are_released() -> None:
    small = 10**8
    assert deepspeed_traffic_bytes(3, small, N) == 4 * small * 7 / 8
    released = deepspeed_traffic_bytes(3, small, N, max_live=1, checkpointed_share=1.0)
    assert released / (small * 7 / 8) == pytest.approx(7.2, abs=0.01)


def test_frozen_parameters_are_sent_at_stage_3_only() -> None:
    shape = replace(make_workload().shape, trainable_parameters=1000)  # type: ignore[type-var]
    workload = make_workload(shape=shape)
    assert sent_bytes_per_step(make_candidate(zero_stage=1), workload, ZeroSettings()) == 6 * 1000 / 2
    assert sent_bytes_per_step(make_candidate(zero_stage=3), workload, ZeroSettings()) == 4 * shape.parameters / 2
    assert sent_bytes_per_step(make_candidate(), make_workload(shape=None), ZeroSettings()) is None
