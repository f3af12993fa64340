"""What is known of a model before it trains: parameters, block lists, and the shape that memory follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysweep.activations import ActivationProfile
from raysweep.errors import ConfigError
from raysweep.text_files import BYTE_VALUES
from raysweep.workload import ModelShape, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockListFacts:
    """One list of equal blocks. An encoder-decoder has two."""

    name: str
    """Dotted name in the model."""
    count: int
    parameters_per_block: int
    """Mean over the blocks: the first of a list may hold a little more, such as a position bias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model that was built once and counted (elements, not bytes)."""

    parameters: int
    """All parameters, shared ones counted once."""
    trainable_parameters: int
    """Those that have a gradient."""
    largest_parameter: int
    """Elements of the largest single tensor."""
    embedding_parameters: int
    """Outside the blocks and before the first of them."""
    head_parameters: int
    """Outside the blocks and behind the first of them. A head that shares the embedding adds nothing."""
    block_lists: tuple[BlockListFacts, ...] = ()
    """Empty where none was found: activation checkpointing has nothing to act on then."""
    tied: tuple[tuple[str, ...], ...] = ()
    """The names of each parameter that has several."""
    hidden: int | None = None
    """None where it does not tell the activations: unequal blocks, blocks without a gradient, batches of its own."""
    vocab_size: int | None = None
    """Logits of a token; None where the head gives no logits a token."""
    positions: int | None = None
    """Longest sequence that its config allows (max_position_embeddings); None where the config has no limit."""
    tokens_per_sample: int | None = None
    """Where the model and not the sweep file decides it, as with images."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package -> version that built the model."""
    activations: ActivationProfile | None = None
    """What its forward and backward hold, in one precision and sequence length."""
    unmeasured: str = ""
    """Why that is not known, where it was asked for."""

    @property
    def blocks(self) -> int:
        """Blocks of all lists."""
        return sum(blocks.count for blocks in self.block_lists)


def shape_of(facts: ModelFacts) -> ModelShape:
    """The numbers that the memory prediction takes.

    Blocks of several lists count together, a block by the mean of all. Where the hidden size is not known it is 0, and
    so are all activations and logits that were not measured: the prediction is then of model states alone.
    """
    in_blocks = sum(blocks.count * blocks.parameters_per_block for blocks in facts.block_lists)
    hidden = facts.hidden or 0
    return ModelShape(
        parameters=facts.parameters,
        block_parameters=round(in_blocks / facts.blocks) if facts.blocks else 0,
        largest_parameter=min(facts.largest_parameter, facts.trainable_parameters),
        blocks=facts.blocks,
        hidden=hidden,
        vocab_size=(facts.vocab_size or 0) if hidden else 0,
        trainable_parameters=None if facts.trainable_parameters == facts.parameters else facts.trainable_parameters,
        tokens_per_sample=facts.tokens_per_sample,
        activations=facts.activations,
    )


def check_text(workload: Workload, *, positions: int | None, vocab_size: int | None) -> None:
    """Refuse a text model that has no room for the sweep's samples; None is no limit.

    Raises:
        ConfigError: when positions or vocabulary are too few.
    """
    if positions is not None and workload.sequence_length > positions:
        raise ConfigError(
            key="sequence_length",
            value=workload.sequence_length,
            rule=f"the model has {positions} positions (max_position_embeddings)",
            nearest=str(positions),
        )
    if workload.data["kind"] == "text" and vocab_size is not None and vocab_size < BYTE_VALUES:
        raise ConfigError(
            key="model.vocab_size",
            value=vocab_size,
            rule=f"text data has {BYTE_VALUES} byte values, so the model's vocab_size must be at least as large",
            nearest=str(BYTE_VALUES),
        )


def describe(facts: ModelFacts) -> str:
    """The facts in a sentence: `model: 6.74e9 parameters, 32 blocks (model.layers)`."""
    counted = f"model: {_short(facts.parameters)} parameters"
    if facts.trainable_parameters != facts.parameters:
        counted += f", {_short(facts.trainable_parameters)} of them trainable"
    if facts.block_lists:
        counted += f", {facts.blocks} blocks ({', '.join(blocks.name for blocks in facts.block_lists)})"
    return counted


def _short(count: int) -> str:
    return f"{count:.2e}".replace("e+0", "e") if count >= 1_000_000 else f"{count:,}"
