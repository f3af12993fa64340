"""Hugging Face models on one rank: equal losses at every stage, blocks recomputed as asked, what is wrong named."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from worker_builders import request_for, single_rank

from raysweep.errors import ConfigError
from raysweep.measurement import RankReport
from raysweep.worker.blocks import find_block_lists
from raysweep.worker.model import build_model, open_model

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 300}
GPT2 = {"config_class": "GPT2Config", "overrides": {"n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 300}}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "lora": {**GPT2, "lora": {"r": 4, "alpha": 8.0, "target_modules": ["c_attn"], "dropout": 0.1}},
    "llama": {
        "config": {"model_type": "llama", "num_key_value_heads": 2, **SMALL},
        "overrides": {"num_hidden_layers": 3},
    },
    "bert": {"config_class": "BertConfig", "head": "masked", "overrides": {"num_hidden_layers": 3, **SMALL}},
    "t5": {
        "config_class": "T5Config",
        "head": "seq2seq",
        "overrides": {"num_layers": 3, "num_decoder_layers": 2, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4},
    },
    "vit": {
        "config_class": "ViTConfig",
        "head": "image_classification",
        "overrides": {"num_hidden_layers": 3, "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_labels": 10},
    },
}
MODELS["t5"]["overrides"]["vocab_size"] = 300
MODELS["vit"]["overrides"] |= {"intermediate_size": 64, "num_attention_heads": 4}


def section(name: str, **changes: Any) -> dict[str, Any]:
    """A whole `hf` section, as a sweep file of this model becomes one."""
    empty = {"config": None, "config_class": None, "overrides": {}, "head": "causal", "attn_implementation": None}
    return {"kind": "hf", "lora": None, "block_lists": [], **empty, **MODELS[name], **changes}


def measure(model: dict[str, Any], stage: int, interval: int = 0, **request: Any) -> RankReport:
    rank = single_rank()
    from raysweep.worker.loop import measure_candidate

    asked = request_for(stage, interval=interval, **request)
    return measure_candidate(
        dataclasses.replace(asked, workload=dataclasses.replace(asked.workload, model=model)), rank
    )


@functools.cache
def report(name: str, stage: int, interval: int) -> RankReport:
    return measure(section(name), stage, interval, precision="fp32")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("stage", "interval"), [(0, 1), (3, 1)])
def test_stages_and_intervals_train_alike(name: str, stage: int, interval: int) -> None:
    measured, plain = report(name, stage, interval), report(name, 0, 0)
    assert measured.first_loss == pytest.approx(plain.first_loss, rel=1e-6)
    assert measured.loss_at_step_5 == pytest.approx(plain.loss_at_step_5, rel=1e-5)
    assert measured.recomputed_blocks == interval * (5 if name == "t5" else 3)
    assert measured.left_behind_bytes < 10_000


def test_half_the_blocks_of_each_list() -> None:
    assert report("t5", 0, 2).recomputed_blocks == 2 + 1


@pytest.mark.parametrize(("name", "is_random"), [("gpt2", True), ("llama", False)])
def test_dropout_is_seen(name: str, is_random: bool) -> None:
    assert report(name, 0, 0).random_forward is is_random


# gpt2: 3 x (12 h^2 + 13 h), 300 + 1024 embeddings, the last norm; llama: attention 3 h^2, feed-forward 6 h^2, two
# norms a block, and embedding and head apart.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gpt2", 3 * (12 * 1024 + 13 * 32) + 1324 * 32 + 64), ("llama", 3 * (9 * 1024 + 64) + 2 * 300 * 32 + 32)],
)
def test_parameters_are_counted_with_tied_weights_once(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = build_model(section(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_only_adapters_are_trained() -> None:
    with torch.device("meta"):
        model = build_model(section("lora"))
    # r = 4: a matrix of 4 x 32 and one of 96 x 4 in each of 3 blocks.
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == 3 * 4 * (32 + 96)
    # Weight, momentum and variance of an adapter, in fp32; a frozen weight alone.
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    assert report("lora", 0, 0).resting_bytes == pytest.approx(12 * trained + 4 * frozen, rel=0.03)


def test_gpt2_of_124m_has_its_published_parameters() -> None:
    with torch.device("meta"):
        model = build_model(section("gpt2", overrides={}))
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


@pytest.mark.parametrize(
    ("names", "counts"), [([], [3, 2]), (["decoder.block"], [2]), (["encoder.block", "decoder.block"], [3, 2])]
)
def test_block_lists_are_found_or_named(names: list[str], counts: list[int]) -> None:
    with torch.device("meta"):
        model = build_model(section("t5"))
    assert [len(blocks) for blocks in find_block_lists(model, names=names)] == counts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config_class": "GTP2Config"}, "model.config_class: 'GTP2Config': .*nearest valid: GPT2Config"),
        (
            {"overrides": {"n_layers": 2}},
            r"model.overrides.n_layers: GPT2Config has no such field \(nearest valid: n_l",
        ),
        ({"config_class": None, "config": {"model_type": "lama"}}, "'lama': is no type of .*nearest valid: llama"),
        ({"head": "seq2seq"}, "model: 'seq2seq': transformers refuses it: Unrecognized configuration class"),
        ({"lora": {"r": 4, "alpha": 8.0, "target_modules": ["nothing"], "dropout": 0.0}}, "model.lora.target_modules"),
    ],
)
def test_what_transformers_does_not_have_is_named(changes: dict[str, Any], message: str) -> None:
    single_rank()
    with pytest.raises(ConfigError, match=message):
        open_model(section("gpt2", **changes))


def test_block_list_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'transformer.hh': must name one list .*nearest valid: transformer\.h"):
        measure(section("gpt2", block_lists=["transformer.hh"]), 0, 1)


@pytest.mark.parametrize(
    ("overrides", "request_fields", "message"),
    [
        ({"vocab_size": 100}, {"data": {"kind": "text", "path": "stdlib"}}, "vocab_size: 100: text data has 256"),
        ({"n_positions": 8}, {}, "sequence_length: 16: the model has 8 positions"),
    ],
)
def test_data_that_does_not_suit_the_model_is_named(
    overrides: dict[str, Any], request_fields: dict[str, Any], message: str
) -> None:
    small = {**MODELS["gpt2"]["overrides"], **overrides}
    with pytest.raises(ConfigError, match=message):
        measure(section("gpt2", overrides=small), 0, **request_fields)


def test_text_suits_every_head_of_tokens() -> None:
    for name in ("bert", "t5"):
        assert 0 < measure(section(name), 0, data={"kind": "text", "path": "stdlib"}).first_loss < 10
