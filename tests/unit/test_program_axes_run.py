"""Attention and torch.compile as axes, in real engines of one rank: the same training by another program."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from builders import make_candidate, make_request, make_workload
from torch._dynamo.utils import counters
from worker_builders import QUICK

from raysweep.estimate.model_facts import count_model, with_activations
from raysweep.launch.in_process import InProcessLauncher
from raysweep.measurement import Figures
from raysweep.memory import ZeroSettings, estimate_memory
from raysweep.model_facts import shape_of
from raysweep.model_schema import HfModel
from raysweep.trial import FailureKind, LaunchRequest

LONGER = replace(QUICK, warmup_min_steps=3, warmup_max_steps=3)
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def launcher() -> InProcessLauncher:
    torch.set_num_threads(1)
    return InProcessLauncher()


def figures_of(launcher: InProcessLauncher, request: LaunchRequest) -> Figures:
    measurement = launcher.launch(request)
    assert measurement.figures is not None, measurement.reason
    return measurement.figures


def test_compiled_blocks_train_alike_are_recomputed_and_leave_nothing(
    launcher: InProcessLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    reset = torch._dynamo.reset

    def noted() -> None:
        seen.append(dict(counters["stats"]))
        reset()

    monkeypatch.setattr(torch._dynamo, "reset", noted)
    counters.clear()
    candidate = make_candidate(zero_stage=1, activation_checkpoint_interval=2)
    plain = figures_of(launcher, make_request(world_size=1, window=LONGER, candidate=candidate))
    assert seen == [] and not counters["stats"]
    request = make_request(world_size=1, window=LONGER, candidate=replace(candidate, torch_compile=True))
    compiled = figures_of(launcher, request)
    assert seen[-1]["unique_graphs"] >= 1
    assert compiled.recomputed_blocks == plain.recomputed_blocks == 2
    assert compiled.first_loss == pytest.approx(plain.first_loss, rel=1e-3)
    assert compiled.loss_at_step_5 == pytest.approx(plain.loss_at_step_5, rel=1e-3)
    assert compiled.peak_memory_bytes == plain.peak_memory_bytes and compiled.left_behind_bytes == 0


def test_eager_attention_trains_alike_and_keeps_its_matrix(launcher: InProcessLauncher) -> None:
    model = HfModel(kind="hf", config_class="LlamaConfig", overrides=LLAMA).model_dump()
    workload = make_workload(model=model, shape=None, world_size=1, sequence_length=64)
    found = {}
    for attention in ("sdpa", "eager"):
        candidate = make_candidate(zero_stage=0, micro_batch_size_per_gpu=16, attn_implementation=attention)
        own = workload.of(candidate)
        found[attention] = figures_of(launcher, make_request(candidate=candidate, workload=own))
        shape = shape_of(with_activations(count_model(own.model), own))
        predicted = estimate_memory(candidate, replace(own, shape=shape), ZeroSettings())
        assert predicted.peak_bytes == pytest.approx(found[attention].peak_memory_bytes, rel=predicted.band)
    assert found["eager"].first_loss == pytest.approx(found["sdpa"].first_loss, rel=1e-3)
    assert found["eager"].peak_memory_bytes > found["sdpa"].peak_memory_bytes


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_an_attention_whose_package_is_missing_is_named(launcher: InProcessLauncher) -> None:
    workload = make_workload(
        model=HfModel(kind="hf", config_class="LlamaConfig", overrides=LLAMA).model_dump(), shape=None, world_size=1
    )
    candidate = make_candidate(zero_stage=0, attn_implementation="flash_attention_2")
    measurement = launcher.launch(make_request(candidate=candidate, workload=workload.of(candidate)))
    assert measurement.failure_kind is FailureKind.CONFIG and "transformers refuses it" in measurement.reason
