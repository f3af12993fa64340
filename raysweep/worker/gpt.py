"""The built-in decoder-only GPT."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

INITIAL_STD = 0.02
"""Standard deviation of the first weights, as in GPT-2."""


class GPT(nn.Module):
    """Decoder-only transformer with learned positions; its forward pass returns the mean loss a token."""

    def __init__(
        self, *, blocks: int, hidden: int, heads: int, vocab_size: int, positions: int, tied: bool = True
    ) -> None:
        super().__init__()
        self.tok = _Embedding(vocab_size, hidden)
        self.pos = _Embedding(positions, hidden)
        self.blocks = nn.ModuleList(_Block(hidden, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(hidden)
        self.head = _TiedHead(self.tok) if tied else _Linear(hidden, vocab_size, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the next token; `input_ids` and `labels` are [batch, sequence] of int64."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tok(input_ids) + self.pos(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


class _Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = _Linear(hidden, 3 * hidden)
        self.out = _Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.up = _Linear(hidden, 4 * hidden)
        self.down = _Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._attend(self.attention_norm(x)))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))

    def _attend(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).reshape(batch, sequence, hidden)


# Weights are set inside the constructors: ZeRO stage 3 shards a module as soon as its constructor ends.
class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INITIAL_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INITIAL_STD)


class _TiedHead(nn.Module):
    """A head over the token embedding; a plain linear layer would allocate weights only to drop them."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)
