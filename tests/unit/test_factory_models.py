"""The user's own model and batches, from a package outside the repository."""

from pathlib import Path
from typing import Any

import pytest
from worker_builders import request_for, single_rank, with_own_code

from raysweep.errors import ConfigError
from raysweep.launch.records import describe_failure
from raysweep.measurement import RankReport
from raysweep.outcome import judge
from raysweep.trial import FailureKind

SOURCE = """
import torch
from torch import nn
from raysweep.worker.data import sample_indices

class Mix(nn.Module):
    def __init__(self, patches, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.tokens = nn.Linear(patches, patches)
        self.channels = nn.Linear(hidden, hidden)
    def forward(self, x):
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(torch.nn.functional.gelu(x))

class Mixer(nn.Module):
    def __init__(self, blocks, patches=4, hidden=16, frozen=0):
        super().__init__()
        self.stem = nn.Linear(8, hidden)
        self.blocks = nn.Sequential(*(Mix(patches, hidden) for _ in range(blocks)))
        self.head = nn.Linear(hidden, 3)
        nn.init.normal_(self.head.weight, std=0.5)
        for block in self.blocks[:frozen]:
            block.requires_grad_(False)
    def forward(self, patches, labels):
        logits = self.head(self.blocks(self.stem(patches)).mean(1))
        return nn.functional.cross_entropy(logits, labels)

def batches(*, micro_batch_size, rank, world_size, seed, count=100):
    for step in range(count):
        indices = sample_indices(step, micro_batch_size=micro_batch_size, rank=rank, world_size=world_size)
        samples = [torch.randn(4, 8, generator=torch.Generator().manual_seed(index)) for index in indices]
        yield {"patches": torch.stack(samples), "labels": torch.tensor([index % 3 for index in indices])}

def large(micro_batch_size):
    return {"patches": torch.zeros(micro_batch_size, 4, 8), "labels": torch.zeros(micro_batch_size, dtype=torch.long)}

def make(blocks=4, **fields):
    return Mixer(blocks, **fields), batches
def with_worst_case():
    return Mixer(4), batches, large
def short():
    return Mixer(4), lambda **given: batches(**given, count=3)
def flat():
    return nn.Linear(8, 8), lambda **given: iter([{"input": torch.zeros(2, 8)}] * 9)
def only_module():
    return Mixer(4)
def no_function():
    return Mixer(4), [1, 2]
def no_dicts():
    return Mixer(4), lambda **given: [torch.zeros(2)] * 9
def wrong_size():
    return Mixer(4), lambda **given: batches(**{**given, "micro_batch_size": 3})
def empty():
    return Mixer(4), lambda **given: []
def raising():
    raise KeyError("lost")
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RankReport:
    """The model with nothing sharded and nothing recomputed."""
    return measure(tmp_path_factory.mktemp("plain"), "make")


def measure(folder: Path, function: str, stage: int = 0, interval: int = 0, **kwargs: Any) -> RankReport:
    (folder / "mixer_of_mine.py").write_text(SOURCE)
    rank = single_rank()
    from raysweep.worker.loop import measure_candidate

    name = function if ":" in function else f"mixer_of_mine:{function}"
    request = request_for(stage, interval=interval, precision="fp32")
    return measure_candidate(with_own_code(request, "factory", folder, name, **kwargs), rank)


@pytest.mark.parametrize(("stage", "interval"), [(0, 2), (3, 0), (3, 1)])
def test_stages_and_intervals_train_alike(plain: RankReport, tmp_path: Path, stage: int, interval: int) -> None:
    measured = measure(tmp_path, "make", stage, interval)
    # Only the head's first weights are set after its constructor, where stage 3 has sharded it.
    assert measured.first_loss == pytest.approx(plain.first_loss, rel=1e-6)
    assert measured.loss_at_step_5 == pytest.approx(plain.loss_at_step_5, rel=1e-5)
    assert measured.recomputed_blocks == {0: 0, 1: 4, 2: 2}[interval]
    assert not measured.cycled_data and not measured.random_forward


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_half_the_parameters_frozen_with_every_block_recomputed(plain: RankReport, tmp_path: Path, stage: int) -> None:
    measured = measure(tmp_path, "make", stage, 1, frozen=2)
    assert measured.recomputed_blocks == 4
    assert measured.first_loss == pytest.approx(plain.first_loss, rel=1e-6)


def test_a_loader_that_ends_begins_again(tmp_path: Path) -> None:
    assert measure(tmp_path, "short").cycled_data


def test_the_worst_case_is_weighed_and_not_taken_for_training(plain: RankReport, tmp_path: Path) -> None:
    measured = measure(tmp_path, "with_worst_case")
    assert measured.first_loss == plain.first_loss
    assert measured.loss_at_step_5 is None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("only_module", r"must return \(model, batches\) or .*; it returned a Mixer"),
        ("no_function", "batches is a list, and no function"),
        ("no_dicts", "must give dicts of tensors; it gave a Tensor"),
        ("wrong_size", "must give batches of micro_batch_size 2; it gave one of 3"),
        ("empty", "batches: gave no batch"),
        ("flat", r"must return the loss, or an object that has it as .loss; it returned a tensor of \[2, 8\]"),
        ("mak", r"mixer_of_mine has no function of this name \(nearest valid: make\)"),
    ],
)
def test_what_the_factory_gives_wrong_is_named(tmp_path: Path, function: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        measure(tmp_path, function)
    assert judge([describe_failure(caught.value, rank=0, node="here")]).failure_kind is FailureKind.CONFIG


@pytest.mark.parametrize(
    ("function", "message"),
    [("not_there:make", "ModuleNotFoundError: No module named 'not_there'"), ("raising", "KeyError: 'lost'")],
)
def test_what_the_users_code_raises_is_told_as_it_is(tmp_path: Path, function: str, message: str) -> None:
    with pytest.raises((ImportError, KeyError)) as caught:
        measure(tmp_path, function)
    outcome = judge([describe_failure(caught.value, rank=0, node="here")])
    assert outcome.failure_kind is FailureKind.USER_CODE
    assert message in outcome.reason


def test_without_blocks_nothing_can_be_recomputed(tmp_path: Path) -> None:
    assert measure(tmp_path, "make", blocks=1).recomputed_blocks == 0
    with pytest.raises(ConfigError, match=r"interval: 1: no list of blocks was found"):
        measure(tmp_path, "make", 0, 1, blocks=1)
