"""The built-in GPT and its block list."""

import pytest
import torch
from torch import nn

from raysweep.candidate import Candidate
from raysweep.errors import CheckpointMismatch
from raysweep.worker.blocks import BlockCounter, checkpoint_blocks, find_block_lists
from raysweep.worker.gpt import GPT
from raysweep.worker.model import build_model
from raysweep.workload import gpt_shape

TINY = {"blocks": 4, "hidden": 32, "vocab_size": 256, "positions": 16}


def train_once(model: GPT) -> float:
    tokens = torch.arange(32).view(2, 16)
    loss = model(input_ids=tokens, labels=tokens + 1)
    loss.backward()
    return loss.item()


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_shape(tied: bool) -> None:
    model = build_model({"kind": "gpt", "heads": 4, "tied": tied, **TINY})
    assert sum(parameter.numel() for parameter in model.parameters()) == gpt_shape(tied=tied, **TINY).parameters


def test_gpt2_of_124m_has_its_published_parameters() -> None:
    with torch.device("meta"):
        model = GPT(blocks=12, hidden=768, heads=12, vocab_size=50257, positions=1024)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_first_loss_is_that_of_a_guess() -> None:
    torch.manual_seed(0)
    assert train_once(GPT(heads=4, **TINY)) == pytest.approx(5.545, abs=0.05)  # ln 256


def test_block_lists_of_encoder_and_decoder_are_found_and_adapters_are_not() -> None:
    model = nn.ModuleDict(
        {name: nn.ModuleList(nn.Linear(8, 8) for _ in range(3)) for name in ("encoder", "decoder")}
        | {"adapters": nn.ModuleList(nn.Linear(2, 2) for _ in range(3))}
        | {"mixed": nn.ModuleList([nn.Linear(64, 64), nn.LayerNorm(64)])}
    )
    assert find_block_lists(model) == [model["encoder"], model["decoder"]]


@pytest.mark.parametrize(("interval", "recomputed"), [(0, 0), (1, 4), (2, 2), (3, 2), (9, 1)])
def test_recomputed_blocks_are_counted_and_the_loss_is_the_same(interval: int, recomputed: int) -> None:
    torch.manual_seed(0)
    model = GPT(heads=4, **TINY)
    plain_loss = train_once(model)
    counter = BlockCounter(find_block_lists(model))
    checkpoint_blocks(find_block_lists(model), interval)
    assert [train_once(model), train_once(model)] == [plain_loss, plain_loss]
    candidate = Candidate(zero_stage=0, activation_checkpoint_interval=interval, micro_batch_size_per_gpu=2)
    assert counter.check(candidate, micro_steps=2) == recomputed


def test_blocks_that_are_not_recomputed_are_a_mismatch() -> None:
    model = GPT(heads=4, **TINY)
    counter = BlockCounter(find_block_lists(model))
    train_once(model)
    candidate = Candidate(zero_stage=0, activation_checkpoint_interval=2, micro_batch_size_per_gpu=2)
    with pytest.raises(CheckpointMismatch, match="should recompute 2 blocks a micro-step, 0"):
        counter.check(candidate, micro_steps=1)
