"""Turns samples into the batch that a model's head asks for: causal, masked, sequence to sequence, images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from raysweep.worker.seeds import mix

Head = Callable[[Tensor, range], dict[str, Tensor]]
"""Stacked samples and their indices -> a model's batch."""

MASKED_SHARE = 0.15
"""Tokens that BERT hides (Devlin et al., 2019)."""
IGNORED = -100
"""The label that cross entropy leaves out, in torch and transformers."""


def next_tokens(samples: Tensor, indices: range) -> dict[str, Tensor]:
    """For models that compare each output with its own label: labels are the tokens that follow."""
    return {"input_ids": samples[:, :-1], "labels": samples[:, 1:]}


def same_tokens(samples: Tensor, indices: range) -> dict[str, Tensor]:
    """For transformers' causal and sequence-to-sequence heads, which shift the labels themselves."""
    # Some models take views of their labels.
    tokens = samples[:, :-1].contiguous()
    return {"input_ids": tokens, "labels": tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokens:
    """Hides 15 % of the tokens of each sample; only they have labels.

    Every sample hides the same number, so that the mean loss does not depend on how samples share micro-batches.
    """

    mask_id: int
    seed: int

    def __call__(self, samples: Tensor, indices: range) -> dict[str, Tensor]:
        """See `Head`."""
        tokens = samples[:, :-1]
        hidden = torch.zeros_like(tokens, dtype=torch.bool)
        for row, index in enumerate(indices):
            generator = torch.Generator().manual_seed(mix(self.seed, -1 - index))
            count = max(1, round(MASKED_SHARE * tokens.shape[1]))
            hidden[row, torch.randperm(tokens.shape[1], generator=generator)[:count]] = True
        return {
            "input_ids": tokens.masked_fill(hidden, self.mask_id),
            "labels": tokens.masked_fill(~hidden, IGNORED),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClassification:
    """Gives each image one of `labels` classes at random."""

    labels: int
    seed: int

    def __call__(self, samples: Tensor, indices: range) -> dict[str, Tensor]:
        """See `Head`."""
        return {
            "pixel_values": samples,
            "labels": torch.tensor([mix(self.seed, -1 - index) % self.labels for index in indices]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCorpus:
    """Normal random images, drawn for each sample from its own seed."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    seed: int

    def sample(self, index: int) -> Tensor:
        """Sample `index` as [channels, height, width], fp32."""
        generator = torch.Generator().manual_seed(mix(self.seed, index))
        return torch.randn(self.shape, generator=generator, dtype=torch.float32)

    def sample_count(self) -> int | None:
        """None: random samples do not run out."""
        return None
