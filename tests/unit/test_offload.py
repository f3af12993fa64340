"""Host and device bytes of an offloaded optimizer: by formula, for no run has been compared."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_candidate, make_workload

from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.trace_estimate import without_host
from raysweep.workload import ModelShape

PARAMETERS = 10**9
SHAPE = ModelShape(
    parameters=PARAMETERS, block_parameters=10**8, largest_parameter=10**7, blocks=10, hidden=1024, vocab_size=1000
)


def estimate(stage: int, *, device: str = "cuda", **zero: Any) -> MemoryEstimate:
    settings = ZeroSettings.from_ds_config({"zero_optimization": {"reduce_bucket_size": 1000, **zero}})
    workload = make_workload(shape=SHAPE, device=device, world_size=4)
    return estimate_memory(make_candidate(zero_stage=stage), workload, settings)


def test_an_offloaded_optimizer_leaves_the_device() -> None:
    plain, offloaded = estimate(2), estimate(2, offload_optimizer={"device": "cpu"})
    assert plain.host_bytes == 0
    assert offloaded.host_bytes == 16 * PARAMETERS // 4
    assert all("optimizer_states" not in terms for terms in offloaded.phases.values())
    assert all(terms["parameters"] == 2 * PARAMETERS for terms in offloaded.phases.values())
    assert offloaded.peak_bytes < plain.peak_bytes


def test_stage_3_may_offload_a_share_and_its_parameters() -> None:
    half = estimate(3, offload_optimizer={"device": "cpu", "ratio": 0.5})
    assert half.host_bytes == 8 * PARAMETERS // 4
    assert half.phases["step"]["optimizer_states"] == 6 * PARAMETERS // 4
    both = estimate(3, offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"})
    assert both.host_bytes == (16 + 2) * PARAMETERS // 4
    assert all("parameters" not in terms for terms in both.phases.values())


@pytest.mark.parametrize(
    ("stage", "device", "zero"),
    [
        (0, "cuda", {"offload_optimizer": {"device": "cpu"}}),
        (2, "cpu", {"offload_optimizer": {"device": "cpu"}}),
        (2, "cuda", {"offload_optimizer": {"device": "none"}}),
        (2, "cuda", {"offload_param": {"device": "cpu"}}),
    ],
)
def test_elsewhere_nothing_moves(stage: int, device: str, zero: dict[str, Any]) -> None:
    assert estimate(stage, device=device, **zero) == estimate(stage, device=device)


def test_a_trace_knows_by_their_makers_what_is_on_the_host() -> None:
    terms = {"step": {"parameters_and_states": 600, "optimizer_states": 80, "update": 40, "activations": 5}}
    assert without_host(terms, master_bytes=400) == {"step": {"parameters_and_states": 200, "activations": 5}}
