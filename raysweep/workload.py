"""What does not vary in a sweep: the model and its shape, the batch arithmetic, the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raysweep.activations import ActivationProfile
from raysweep.candidate import Candidate
from raysweep.serde import sha256_of, to_dict

BYTES_PER_ELEMENT = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a model that memory and time follow from (elements, not bytes)."""

    parameters: int
    """All parameters, shared ones counted once."""
    block_parameters: int
    """Parameters of one transformer block."""
    largest_parameter: int
    """Elements of the largest single tensor."""
    blocks: int
    hidden: int
    """0 where it is not known: activations are left out then."""
    vocab_size: int
    trainable_parameters: int | None = None
    """Those that have a gradient and optimizer states; None: all."""
    tokens_per_sample: int | None = None
    """Where the model decides it, as with images; None: the sequence length."""
    activations: ActivationProfile | None = None
    """What its forward and backward hold, where that was measured."""
    activations_by_attention: Mapping[str, ActivationProfile] = field(default_factory=dict)
    """The same with each attention that candidates have of their own."""

    @property
    def trainable(self) -> int:
        """Parameters that have a gradient and optimizer states."""
        return self.parameters if self.trainable_parameters is None else self.trainable_parameters


def gpt_shape(*, blocks: int, hidden: int, vocab_size: int, positions: int, tied: bool) -> ModelShape:
    """Shape of the built-in GPT.

    A block has 12 h^2 + 13 h parameters: attention 4 h^2 + 4 h, feed-forward 8 h^2 + 5 h, two layer norms 4 h.
    """
    block = 12 * hidden**2 + 13 * hidden
    embeddings = vocab_size * hidden * (1 if tied else 2) + positions * hidden
    return ModelShape(
        parameters=blocks * block + embeddings + 2 * hidden,
        block_parameters=block,
        largest_parameter=max(vocab_size * hidden, 4 * hidden**2),
        blocks=blocks,
        hidden=hidden,
        vocab_size=vocab_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that stays the same for all candidates of a sweep and that could change a measurement."""

    model: Mapping[str, Any]
    """The model section of the sweep file, as plain values (`kind` and its fields)."""
    shape: ModelShape | None
    """None where the parameters are not known before the model is built."""
    data: Mapping[str, Any]
    sequence_length: int
    precision: str
    optimizer: Mapping[str, Any]
    world_size: int
    device: str = "cpu"
    """Device type of the workers: cpu or cuda."""
    global_batch_size: int | None = None
    """None: free, each candidate has its own."""
    seed: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables set before a worker starts; they change speed, so they belong to the workload."""

    @property
    def tokens_per_sample(self) -> int:
        """Tokens that the model works on for one sample."""
        decided = None if self.shape is None else self.shape.tokens_per_sample
        return self.sequence_length if decided is None else decided

    def of(self, candidate: Candidate) -> Workload:
        """The workload as one candidate trains it: on its own number of workers, with its own attention.

        With an attention other than the model section's, activations are those that were measured with it, or unknown.
        """
        workload = self
        if candidate.world_size is not None:
            workload = replace(workload, world_size=candidate.world_size)
        if candidate.attn_implementation is not None:
            model = {**workload.model, "attn_implementation": candidate.attn_implementation}
            shape = workload.shape
            if shape is not None and candidate.attn_implementation != workload.model.get("attn_implementation"):
                own = shape.activations_by_attention.get(candidate.attn_implementation)
                shape = replace(shape, activations=own, activations_by_attention={})
            workload = replace(workload, model=model, shape=shape)
        return workload

    def global_batch_of(self, micro_batch_size_per_gpu: int, gradient_accumulation_steps: int) -> int:
        """Samples in one optimizer step: micro-batch x accumulation x world size."""
        return micro_batch_size_per_gpu * gradient_accumulation_steps * self.world_size

    def described(self) -> dict[str, Any]:
        """All fields as plain values, without the measured activations: they follow from the others, and are long."""
        plain = to_dict(self)
        if plain["shape"] is not None:
            del plain["shape"]["activations"], plain["shape"]["activations_by_attention"]
        return plain

    def workload_sha256(self) -> str:
        """Hash of what is described: two measurements compare only where it is equal."""
        return sha256_of(self.described())


def accumulation_for(global_batch_size: int, micro_batch_size_per_gpu: int, world_size: int) -> int | None:
    """Accumulation steps that give the global batch exactly, or None where none does."""
    per_micro_step = micro_batch_size_per_gpu * world_size
    return global_batch_size // per_micro_step if global_batch_size % per_micro_step == 0 else None


def nearest_global_batches(global_batch_size: int, world_size: int) -> tuple[int, ...]:
    """The closest totals below and above that `world_size` ranks can share (256 on 7: 252 and 259)."""
    below = global_batch_size // world_size * world_size
    return tuple(total for total in (below, below + world_size) if total > 0)


def legal_splits(global_batch_size: int, world_size: int) -> list[tuple[int, int]]:
    """All (micro-batch, accumulation) pairs that give a global batch; empty where it cannot be shared."""
    if global_batch_size % world_size:
        return []
    per_rank = global_batch_size // world_size
    return [(micro, per_rank // micro) for micro in range(1, per_rank + 1) if per_rank % micro == 0]
