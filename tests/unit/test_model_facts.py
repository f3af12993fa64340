"""Counting a model without its weights, and what memory follows from the count."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_workload
from torch import nn

from raysweep.budget import MeasurementWindow
from raysweep.estimate import model_facts as counting
from raysweep.estimate.model_facts import count_model
from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.model_facts import BlockListFacts, ModelFacts, describe, shape_of
from raysweep.model_schema import FactoryModel
from raysweep.plan import predicted_seconds
from raysweep.workload import ModelShape, gpt_shape

GPT = {"kind": "gpt", "blocks": 4, "hidden": 32, "heads": 2, "vocab_size": 256, "positions": 16, "tied": True}
LLAMA_7B = ModelFacts(
    parameters=6_738_415_616,
    trainable_parameters=6_738_415_616,
    largest_parameter=131_072_000,
    embedding_parameters=131_072_000,
    head_parameters=131_076_096,
    block_lists=(BlockListFacts(name="model.layers", count=32, parameters_per_block=202_383_360),),
    hidden=4096,
    vocab_size=32_000,
)

LOOKS_AT_NUMBERS = """
import torch

class Mixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

def make():
    mean = torch.ones(4).tolist()
    return Mixer(), lambda **sizes: []
"""


class Config:
    """What a transformers config says."""

    def __init__(self, **fields: int) -> None:
        self.__dict__.update(fields)


class Foreign(nn.Module):
    """Two lists of blocks between an embedding and a head."""

    def __init__(self, widths: list[int], config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.encoder = nn.ModuleList(nn.Linear(8, width) for width in widths)
        self.decoder = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 5)
        self.config = config


def count_foreign(
    monkeypatch: pytest.MonkeyPatch, *, widths: list[int], kind: str = "hf", frozen: str = "none", **config: int
) -> ModelFacts:
    model = Foreign(widths, Config(**config))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    monkeypatch.setattr(counting, "build_model", lambda section: model)
    return count_model({"kind": kind, "head": "image_classification" if "patch_size" in config else "causal"})


def estimate(shape: ModelShape, **changes: Any) -> MemoryEstimate:
    workload = make_workload(shape=shape, **{"model": {"kind": "hf"}} | changes)
    return estimate_memory(make_candidate(zero_stage=0), workload, ZeroSettings(reduce_bucket_size=1000))


def test_the_built_in_model_is_counted_as_its_formula_says() -> None:
    facts = count_model(GPT)
    shape = gpt_shape(blocks=4, hidden=32, vocab_size=256, positions=16, tied=True)
    assert (facts.parameters, facts.trainable_parameters) == (shape.parameters, shape.parameters)
    assert facts.block_lists == (BlockListFacts(name="blocks", count=4, parameters_per_block=shape.block_parameters),)
    assert (facts.embedding_parameters, facts.head_parameters) == ((256 + 16) * 32, 2 * 32)
    assert facts.tied == (("tok.weight", "head.weight"),)


def test_two_lists_are_named_and_the_rest_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = count_foreign(monkeypatch, widths=[8, 8], hidden_size=8, vocab_size=5)
    assert [(each.name, each.count, each.parameters_per_block) for each in facts.block_lists] == [
        ("encoder", 2, 72),
        ("decoder", 3, 72),
    ]
    assert (facts.embedding_parameters, facts.head_parameters, facts.parameters) == (80, 45, 80 + 5 * 72 + 45)
    assert (facts.hidden, facts.vocab_size, facts.blocks) == (8, 5, 5)


@pytest.mark.parametrize(
    "odd",
    [{"kind": "factory"}, {"widths": [8, 16]}, {"frozen": "encoder"}, {"frozen": "encoder.0"}],
    ids=["own batches", "unequal blocks", "no block trained", "one block not trained"],
)
def test_activations_are_unknown_where_a_hidden_size_does_not_tell_them(
    monkeypatch: pytest.MonkeyPatch, odd: dict[str, Any]
) -> None:
    facts = count_foreign(monkeypatch, **{"widths": [8, 8], "hidden_size": 8, "vocab_size": 5} | odd)
    assert facts.hidden is None
    assert (shape_of(facts).hidden, shape_of(facts).vocab_size) == (0, 0)


def test_an_image_has_as_many_tokens_as_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = count_foreign(monkeypatch, widths=[8, 8], hidden_size=8, image_size=224, patch_size=16)
    assert (facts.tokens_per_sample, facts.vocab_size) == (196, None)
    workload = make_workload(shape=shape_of(facts), sequence_length=4096)
    assert workload.tokens_per_sample == 196
    seconds = predicted_seconds(make_candidate(), workload, MeasurementWindow(measured_s=0.0))
    assert seconds < predicted_seconds(make_candidate(), make_workload(sequence_length=4096), MeasurementWindow())


def test_a_shape_counts_the_blocks_of_all_lists() -> None:
    lists = (
        BlockListFacts(name="encoder", count=2, parameters_per_block=100),
        BlockListFacts(name="decoder", count=6, parameters_per_block=180),
    )
    facts = ModelFacts(
        parameters=2000,
        trainable_parameters=500,
        largest_parameter=700,
        embedding_parameters=0,
        head_parameters=0,
        block_lists=lists,
    )
    shape = shape_of(facts)
    assert (shape.blocks, shape.block_parameters) == (8, 160)
    assert (shape.trainable, shape.largest_parameter) == (500, 500)


def test_facts_read_as_a_sentence() -> None:
    assert describe(LLAMA_7B) == "model: 6.74e9 parameters, 32 blocks (model.layers)"


def test_frozen_parameters_have_neither_gradients_nor_states() -> None:
    frozen = ModelShape(
        parameters=10**7,
        block_parameters=0,
        largest_parameter=10**5,
        blocks=0,
        hidden=0,
        vocab_size=0,
        trainable_parameters=10**6,
    )
    phases = estimate(frozen).phases
    resting = Counter(parameters=2 * 10**7, optimizer_states=12 * 10**6)
    assert phases["step"] == resting + Counter(gradients=6 * 10**6, optimizer_temporaries=8 * 10**5)
    assert phases["gradient_reduction"] == resting + Counter(gradients=2 * 10**6, reduction_copies=2 * 10**6)


def test_half_of_the_activations_of_a_model_that_is_not_ours_prunes_nothing() -> None:
    shape = ModelShape(
        parameters=1000, block_parameters=10, largest_parameter=100, blocks=50, hidden=10**4, vocab_size=0
    )
    guess = estimate(shape)
    activations = guess.phases[guess.peak_phase]["activations"]
    rest = guess.peak_bytes - activations
    assert activations > 100 * rest
    assert guess.lower_bound_bytes == pytest.approx(0.88 * rest + 0.5 * activations)
    assert estimate(shape, model={"kind": "gpt"}).lower_bound_bytes == round(0.88 * guess.peak_bytes)


def test_model_states_are_known_whatever_the_model() -> None:
    guess = estimate(replace(shape_of(LLAMA_7B), hidden=0, vocab_size=0))
    assert guess.band == pytest.approx(0.12)
    assert estimate(shape_of(LLAMA_7B), device="cuda").band == pytest.approx(0.2, abs=0.001)


def test_a_factory_that_looks_at_numbers_is_built_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    (tmp_path / "looks_at_numbers.py").write_text(LOOKS_AT_NUMBERS)
    section = FactoryModel(kind="factory", factory="looks_at_numbers:make", python_path=str(tmp_path))
    facts = count_model(section.model_dump())
    assert (facts.parameters, facts.hidden) == (60, None)
    assert [(each.name, each.count) for each in facts.block_lists] == [("blocks", 3)]


def test_main_answers_with_facts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"section": GPT, "workload": None})))
    counting.main()
    assert json.loads(capsys.readouterr().out)["facts"]["parameters"] == count_model(GPT).parameters
