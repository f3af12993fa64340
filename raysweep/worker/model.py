"""The choice of model by its kind: what is to be built, and what it trains on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from raysweep.errors import ConfigError
from raysweep.model_schema import LOOP_KINDS
from raysweep.trial import LaunchRequest
from raysweep.worker.data import Batches, MicroBatches, open_corpus
from raysweep.worker.factory_model import FactoryBlueprint
from raysweep.worker.gpt import GPT


class Blueprint(Protocol):
    """A model that is checked and imported, but not yet built."""

    block_lists: Sequence[str]
    """Dotted names of its block lists, where the user gives them."""

    def build(self) -> nn.Module:
        """The model, on the default device and in the default dtype; `model(**batch)` gives a loss, or has `.loss`."""
        ...

    def batches(self, request: LaunchRequest, rank: int) -> Batches:
        """What the built model trains on."""
        ...


def open_model(model: Mapping[str, Any]) -> Blueprint:
    """The blueprint of a workload's model section (`kind` and its fields), with all imports done that it needs.

    Raises:
        ConfigError: when the section cannot be right.
        Exception: whatever a user's factory raises on import.
    """
    if model["kind"] == "gpt":
        return GptBlueprint(model)
    if model["kind"] == "factory":
        return FactoryBlueprint(model)
    if model["kind"] in LOOP_KINDS:
        rule = (
            "brings its own training loop, and is trained by it: give it best/ds_config.json, and checkpoint its "
            "blocks by checkpoint_blocks.py of `raysweep export RESULTS --to deepspeed,hf`"
        )
        raise ConfigError(key="model.kind", value=model["kind"], rule=rule)
    assert model["kind"] == "hf", model["kind"]
    # Read by huggingface_hub when it is imported: nothing is ever downloaded.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from raysweep.worker.hf_model import HfBlueprint

    return HfBlueprint(model)


def build_model(model: Mapping[str, Any]) -> nn.Module:
    """The module of a model section, on the default device (`meta` will do) and in the default dtype.

    Raises:
        ConfigError: when the section cannot be right.
    """
    return open_model(model).build()


class GptBlueprint:
    """The built-in GPT and its batches."""

    block_lists: Sequence[str] = ()

    def __init__(self, model: Mapping[str, Any]) -> None:
        self._fields = {key: value for key, value in model.items() if key != "kind"}

    def build(self) -> nn.Module:
        """See `Blueprint.build`."""
        return GPT(**self._fields)

    def batches(self, request: LaunchRequest, rank: int) -> MicroBatches:
        """See `Blueprint.batches`."""
        workload = request.workload
        corpus = open_corpus(
            workload.data,
            sequence_length=workload.sequence_length,
            vocab_size=self._fields["vocab_size"],
            seed=workload.seed,
        )
        return MicroBatches(corpus, request, rank)
