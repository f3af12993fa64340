"""One point of the search space, frozen, with a stable short id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from raysweep.serde import sha256_of

ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is varied between two trials. It keeps no slots, because its id is computed once and kept."""

    zero_stage: int
    activation_checkpoint_interval: int
    """k: block i is recomputed in backward when k > 0 and i % k == 0; 0 = none is."""
    micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int = 1
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    """Further axes: DeepSpeed keys by dotted path, with this candidate's value."""
    attn_implementation: str | None = None
    """Attention of a transformers model; None: that of the workload."""
    torch_compile: bool = False
    """Whether each block is compiled by `torch.compile`."""
    world_size: int | None = None
    """Workers that train it; None: those of the workload."""

    def __post_init__(self) -> None:
        assert self.zero_stage in ZERO_STAGES, self.zero_stage
        assert self.activation_checkpoint_interval >= 0, self.activation_checkpoint_interval
        assert self.micro_batch_size_per_gpu >= 1, self.micro_batch_size_per_gpu
        assert self.gradient_accumulation_steps >= 1, self.gradient_accumulation_steps

    @cached_property
    def candidate_id(self) -> str:
        """Readable and unique: `s2-k1-b4-g2`, then further axes in words, then a short hash of DeepSpeed's keys.

        `s2-k1-b4-g2-w1-eager-compile` trains on one worker, with eager attention, and with its blocks compiled.
        """
        parts = [
            f"s{self.zero_stage}-k{self.activation_checkpoint_interval}"
            f"-b{self.micro_batch_size_per_gpu}-g{self.gradient_accumulation_steps}"
        ]
        parts += [] if self.world_size is None else [f"w{self.world_size}"]
        parts += [] if self.attn_implementation is None else [self.attn_implementation]
        parts += ["compile"] if self.torch_compile else []
        parts += [sha256_of(dict(self.deepspeed))[:6]] if self.deepspeed else []
        return "-".join(parts)

    @property
    def program(self) -> dict[str, Any]:
        """Further axes that are no DeepSpeed keys, by name; those that are as in the workload are left out."""
        values = {
            "world_size": self.world_size,
            "attn_implementation": self.attn_implementation,
            "torch_compile": self.torch_compile or None,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def further_axes(self) -> dict[str, Any]:
        """All that it has beside stage, interval, micro-batch and accumulation: axis or DeepSpeed key -> value."""
        return self.program | dict(self.deepspeed)

    def recomputed_blocks(self, block_count: int) -> int:
        """Blocks recomputed in one backward pass over `block_count` blocks: ceil(count / k), 0 when k is 0."""
        interval = self.activation_checkpoint_interval
        return -(-block_count // interval) if interval else 0


def axes_legend(axes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the short hash at the end of an id means: a line for each set of further axes.

    Args:
        axes: candidate id -> further axes.
    """
    sets = {candidate_id.rpartition("-")[2]: values for candidate_id, values in axes.items() if values}
    return [f"-{name}: {', '.join(f'{key} = {value}' for key, value in sets[name].items())}" for name in sorted(sets)]
