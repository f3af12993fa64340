"""Whole sweeps of the models that people have: two workers, four stages, two intervals, a confirmed winner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweeps import run, selection, trials, write_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 300}
GPT2 = {"kind": "hf", "config_class": "GPT2Config", "overrides": {"n_layer": 4, "n_embd": 64, "n_head": 4}}
GROUPED_QUERIES = {"num_hidden_layers": 4, "num_key_value_heads": 2, **SMALL}
T5 = {"num_layers": 4, "num_decoder_layers": 2, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4}
VIT = {"num_hidden_layers": 4, "image_size": 32, "patch_size": 8, "num_labels": 10, **SMALL}
del VIT["vocab_size"]
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "llama": ({"kind": "hf", "config_class": "LlamaConfig", "overrides": GROUPED_QUERIES}, 4),
    "bert": (
        {"kind": "hf", "config_class": "BertConfig", "head": "masked", "overrides": {"num_hidden_layers": 4, **SMALL}},
        4,
    ),
    "t5": ({"kind": "hf", "config_class": "T5Config", "head": "seq2seq", "overrides": {**T5, "vocab_size": 300}}, 6),
    "vit": ({"kind": "hf", "config_class": "ViTConfig", "head": "image_classification", "overrides": VIT}, 4),
    "gpt2-lora": ({**GPT2, "lora": {"r": 4, "alpha": 8.0, "target_modules": ["c_attn"]}}, 4),
    "mixer": ({"kind": "factory", "factory": "mixers.small:make", "python_path": "outside"}, 4),
}
"""Name -> model section, and how many blocks its lists hold."""

MIXER = '''
import torch
from torch import nn

from raysweep.worker.data import sample_indices


class Block(nn.Module):
    def __init__(self, patches, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.over_patches = nn.Linear(patches, patches)
        self.over_channels = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x):
        x = x + self.over_patches(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(x)


class Mixer(nn.Module):
    def __init__(self, blocks=4, patches=16, hidden=64):
        super().__init__()
        self.stem = nn.Linear(48, hidden)
        self.blocks = nn.ModuleList(Block(patches, hidden) for _ in range(blocks))
        self.head = nn.Linear(hidden, 10)

    def forward(self, patches, labels):
        x = self.stem(patches)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"patches": torch.randn(16, 48, generator=generator), "labels": torch.tensor(index % 10)}


class InOrder:
    """Sample indices that are the same however the global batch is split."""

    def __init__(self, **given):
        self.given = given

    def __iter__(self):
        for step in range(4096 // (self.given["micro_batch_size"] * self.given["world_size"])):
            yield list(sample_indices(step, **self.given))


def batches(*, micro_batch_size, rank, world_size, seed):
    order = InOrder(micro_batch_size=micro_batch_size, rank=rank, world_size=world_size)
    return torch.utils.data.DataLoader(Images(), batch_sampler=order, num_workers=1)


def make():
    return Mixer(), batches


def raises_on_rank_1():
    import os

    if os.environ.get("RANK") == "1":
        raise KeyError("the shard of rank 1 is missing")
    return make()


def returns_a_number():
    return 7
'''


def _sweep(folder: Path, model: dict[str, Any], **changes: Any) -> Path:
    package = folder / "outside" / "mixers"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "small.py").write_text(MIXER)
    space = {
        "zero_stage": [0, 1, 2, 3],
        "activation_checkpoint_interval": [0, 2],
        "micro_batch_size_per_gpu": [2],
    }
    takes_text = model["kind"] == "hf" and model.get("head") != "image_classification"
    data = {"kind": "text", "path": "stdlib"} if takes_text else {"kind": "synthetic"}
    return write_sweep(folder, model=model, data=data, memory_budget="512MiB", **{"space": space, **changes})


@pytest.mark.parametrize("name", MODELS)
def test_a_family_is_swept_to_a_confirmed_winner(tmp_path: Path, name: str) -> None:
    model, blocks = MODELS[name]
    exit_code, output = run(_sweep(tmp_path, model), timeout_s=580)
    assert exit_code == 0, output
    assert selection(tmp_path)["confirmed"]
    rows = trials(tmp_path)
    assert [row["status"] for row in rows] == ["COMPLETED"] * 8, output
    recomputed = {(row["activation_checkpoint_interval"], row["recomputed_blocks"]) for row in rows}
    assert recomputed == {(0, 0), (2, blocks // 2)}
    # Stage 3 multiplies by another kernel, which rounds the last bits otherwise.
    assert [row["first_loss"] for row in rows] == [pytest.approx(rows[0]["first_loss"], rel=1e-4)] * 8
    assert not [row["candidate_id"] for row in rows if row["loss_parity"] is False]


FACTORY_FAILURES = {
    "mixers.absent:make": "No module named 'mixers.absent'",
    "mixers.small:returns_a_number": "must return (model, batches)",
    "mixers.small:raises_on_rank_1": "the shard of rank 1 is missing",
}


@pytest.mark.parametrize("factory", FACTORY_FAILURES)
def test_a_factory_that_fails_is_the_users_and_nothing_hangs(tmp_path: Path, factory: str) -> None:
    space = {"zero_stage": [1], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [2]}
    model = {"kind": "factory", "factory": factory, "python_path": "outside"}
    exit_code, output = run(_sweep(tmp_path, model, space=space))
    assert FACTORY_FAILURES[factory] in output and "Traceback" not in output
    if exit_code == 2:  # known before a worker starts, where the factory is called for its facts
        assert not (tmp_path / "results").exists()
        return
    assert exit_code == 3, output
    (row,) = trials(tmp_path)
    assert (row["status"], row["failure_kind"], row["peak_rank"]) == ("FAILED", "user_code", 1)
