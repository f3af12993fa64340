"""A user's factory whose batches come from processes of their own."""

from __future__ import annotations

from typing import Any

import torch
from faulty import WIDTH
from faulty import make as make_faulty


class Noise(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples that depend on their index only."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))}


def make() -> tuple[Any, Any]:
    """A model and a loader with two processes a rank."""

    def batches(*, micro_batch_size: int, rank: int, world_size: int, seed: int) -> Any:
        return torch.utils.data.DataLoader(Noise(), batch_size=micro_batch_size, num_workers=2)

    return make_faulty(kind="none")[0], batches
