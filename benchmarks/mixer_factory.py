"""A plain MLP-Mixer with batches of its own, for the benchmark of the memory prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

PATCHES, FEATURES, CLASSES = 16, 48, 10


class _Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.over_patches = nn.Linear(PATCHES, PATCHES)
        self.over_channels = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_patches(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(x)


class _Mixer(nn.Module):
    def __init__(self, blocks: int, hidden: int) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, hidden)
        self.blocks = nn.ModuleList(_Block(hidden) for _ in range(blocks))
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, patches: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(patches)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


def batches(*, micro_batch_size: int, rank: int, world_size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Random patches without end."""
    generator = torch.Generator().manual_seed(seed + rank)
    while True:
        yield {
            "patches": torch.randn(micro_batch_size, PATCHES, FEATURES, generator=generator, dtype=torch.float32),
            "labels": torch.randint(0, CLASSES, (micro_batch_size,), generator=generator),
        }


def make(blocks: int = 4, hidden: int = 64) -> tuple[nn.Module, Any]:
    """The model, and what it trains on."""
    return _Mixer(blocks, hidden), batches
