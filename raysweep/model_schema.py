"""The kinds of `model` section: the built-in GPT, Hugging Face configs, the user's own factory, Trainer or loop."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from raysweep.section import Positive, Section

FACTORY_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


class GptModel(Section):
    """The built-in decoder-only transformer."""

    kind: Literal["gpt"]
    blocks: Positive
    hidden: Positive
    heads: Positive
    vocab_size: Positive = 256
    positions: Positive | None = None
    """Learned positions; the sequence length where not given."""
    tied: bool = True
    """Whether the head shares the token embedding."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> GptModel:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} must be a multiple of heads {self.heads}")
        return self


class LoraSection(Section):
    """Low-rank adapters through peft: only they are trained."""

    r: Positive = 8
    """Rank of an adapter."""
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """Scale of an adapter's output: alpha / r."""
    target_modules: list[str] | str | None = None
    """Names of the modules that get adapters, or a pattern; peft's choice for the model's type where not given."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class HfModel(Section):
    """Any transformers model, built from its config with random weights; nothing is downloaded."""

    kind: Literal["hf"]
    config: str | None = None
    """A `config.json` or its folder, relative to the sweep file."""
    config_class: str | None = None
    """A config class of transformers, e.g. GPT2Config, with its defaults; instead of `config`."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Values of the config that are set anew, e.g. {n_layer: 4}."""
    head: Literal["causal", "masked", "seq2seq", "image_classification"] = "causal"
    attn_implementation: str | None = None
    """Attention of transformers, e.g. sdpa or eager; the model's default where not given."""
    lora: LoraSection | None = None
    block_lists: list[str] = Field(default_factory=list)
    """Dotted names of the lists of blocks, e.g. [transformer.h]; found by size where not given."""

    @model_validator(mode="after")
    def _one_config(self) -> HfModel:
        if (self.config is None) == (self.config_class is None):
            raise ValueError("an hf model needs either config (a config.json) or config_class (e.g. GPT2Config)")
        return self


class FactoryModel(Section):
    """The user's own function, which makes the module and its batches."""

    kind: Literal["factory"]
    factory: Annotated[str, Field(pattern=FACTORY_PATTERN)]
    """`package.module:function`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """What the function is called with."""
    block_lists: list[str] = Field(default_factory=list)
    """Dotted names of the lists of blocks; found by size where not given."""
    python_path: str | None = None
    """A folder that the workers import from, relative to the sweep file."""


class TrainerModel(Section):
    """The user's own function, which returns a transformers Trainer."""

    kind: Literal["trainer"]
    trainer: Annotated[str, Field(pattern=FACTORY_PATTERN)]
    """`package.module:function`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """What the function is called with."""
    block_lists: list[str] = Field(default_factory=list)
    """Dotted names of the lists of blocks; found by size where not given."""
    python_path: str | None = None
    """A folder that the workers import from, relative to the sweep file."""


class LoopModel(Section):
    """The user's own training loop, or Accelerate's, which tells a meter of each optimizer step."""

    kind: Literal["loop"]
    loop: Annotated[str, Field(pattern=FACTORY_PATTERN)]
    """`package.module:function`, called with the DeepSpeed config and the meter."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """What the function is called with beside them."""
    block_lists: list[str] = Field(default_factory=list)
    """Dotted names of the lists of blocks; found by size where not given."""
    python_path: str | None = None
    """A folder that the workers import from, relative to the sweep file."""


LOOP_KINDS = ("trainer", "loop")
"""Kinds of model that bring their training loop along, with a model and batches of their own."""

FUNCTION_KINDS = ("factory", *LOOP_KINDS)
"""Kinds of model that are a function of the user's, which the section names under its kind."""

MODEL_SECTIONS: dict[str, type[Section]] = {
    "gpt": GptModel,
    "hf": HfModel,
    "factory": FactoryModel,
    "trainer": TrainerModel,
    "loop": LoopModel,
}
"""Kind -> its section."""

AnyModel = Annotated[GptModel | HfModel | FactoryModel | TrainerModel | LoopModel, Field(discriminator="kind")]
