"""Builds transformers models from a config alone, with first weights that are equal at every ZeRO stage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations import deepspeed as integration
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from raysweep.errors import ConfigError, nearest_name
from raysweep.model_facts import check_text
from raysweep.trial import LaunchRequest
from raysweep.worker.birth import gathered
from raysweep.worker.data import Corpus, MicroBatches, open_corpus
from raysweep.worker.heads import Head, ImageClassification, ImageCorpus, MaskedTokens, same_tokens
from raysweep.worker.seeds import mix
from raysweep.workload import Workload

AUTO_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image_classification": "AutoModelForImageClassification",
}


class HfBlueprint:
    """A transformers model, checked and not yet built; nothing is downloaded.

    Raises:
        ConfigError: when transformers has no such config, field or head.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        self._model = model
        self.block_lists: Sequence[str] = model["block_lists"]
        self.config = _config(model)
        # Imports what the build needs, and finds most mistakes, before anything is sharded.
        with torch.device("meta"):
            self.build()

    def build(self) -> nn.Module:
        """The model, with adapters where they are asked for, on the default device and in the default dtype."""
        auto_class = getattr(transformers, AUTO_CLASSES[self._model["head"]])
        attention = self._model["attn_implementation"]
        with initialising_whole_weights(), _named(self._model):
            model: nn.Module = auto_class.from_config(
                self.config,
                dtype=torch.get_default_dtype(),
                trust_remote_code=False,
                **({} if attention is None else {"attn_implementation": attention}),
            )
        if self._model["lora"] is not None:
            from raysweep.worker.lora import with_adapters

            model = with_adapters(model, self._model["lora"])
        return model

    def batches(self, request: LaunchRequest, rank: int) -> MicroBatches:
        """Batches that the head understands, from the workload's data.

        Raises:
            ConfigError: when the data does not suit the model.
        """
        corpus, head = self._corpus_and_head(request.workload)
        return MicroBatches(corpus, request, rank, head=head)

    def _corpus_and_head(self, workload: Workload) -> tuple[Corpus, Head]:
        if self._model["head"] == "image_classification":
            return self._images(workload)
        text_config = self.config.get_text_config()
        positions = getattr(text_config, "max_position_embeddings", None)
        check_text(workload, positions=positions, vocab_size=text_config.vocab_size)
        corpus = open_corpus(
            workload.data,
            sequence_length=workload.sequence_length,
            vocab_size=text_config.vocab_size,
            seed=workload.seed,
        )
        if self._model["head"] == "masked":
            mask_id = getattr(text_config, "mask_token_id", None)
            last_id = text_config.vocab_size - 1
            return corpus, MaskedTokens(mask_id=last_id if mask_id is None else mask_id, seed=workload.seed)
        return corpus, same_tokens

    def _images(self, workload: Workload) -> tuple[Corpus, Head]:
        if workload.data["kind"] != "synthetic":
            raise ConfigError(key="data.kind", value=workload.data["kind"], rule="an image model needs synthetic data")
        size = getattr(self.config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(self.config, "num_channels", 3)
        corpus = ImageCorpus(shape=(channels, height, width), seed=workload.seed)
        return corpus, ImageClassification(labels=self.config.num_labels, seed=workload.seed)


def _config(model: Mapping[str, Any]) -> PretrainedConfig:
    config_class, fields = _class_and_fields(model)
    for key in model["overrides"]:
        _check_override(key, config_class)
    config = config_class(**{**fields, **model["overrides"]})
    # Keys and values of earlier tokens are of no use in training, and would be kept.
    config.use_cache = False
    if model["head"] == "seq2seq" and getattr(config, "decoder_start_token_id", None) is None:
        # T5 starts its decoder with the padding token, and has that in its published configs only.
        config.decoder_start_token_id = config.pad_token_id or 0
    return config


def _class_and_fields(model: Mapping[str, Any]) -> tuple[type[PretrainedConfig], Mapping[str, Any]]:
    fields = dict(model["config"] or {})
    if model["config"] is None:
        key, value, rule = "model.config_class", model["config_class"], "is no config class of transformers"
        known = {name: name for name in CONFIG_MAPPING_NAMES.values()}
    else:
        key, value, rule = "model.config.model_type", fields.pop("model_type", None), "is no type of transformers"
        known = dict(CONFIG_MAPPING_NAMES)
    if value not in known:
        raise ConfigError(key=key, value=value, rule=rule, nearest=nearest_name(str(value), known))
    return getattr(transformers, known[value]), fields


def _check_override(key: str, config_class: type[PretrainedConfig]) -> None:
    """A config takes any name, so a misspelt one would be kept and change nothing."""
    default = config_class()
    # Ids of special tokens are part of published configs, and of few classes.
    if not hasattr(default, key) and not key.endswith("_token_id"):
        near = nearest_name(key, {*default.to_dict(), *default.attribute_map})
        rule = f"{config_class.__name__} has no such field"
        raise ConfigError(key=f"model.overrides.{key}", rule=rule, nearest=near)


@contextmanager
def _named(model: Mapping[str, Any]) -> Iterator[None]:
    """A head or an attention that a config does not have is the user's to mend, and is named so."""
    try:
        yield
    except (ValueError, ImportError) as error:  # the latter where an attention's package is not installed
        text = " ".join(str(error).split())
        raise ConfigError(key="model", value=model["head"], rule=f"transformers refuses it: {text}") from error


@contextmanager
def initialising_whole_weights(*, seed: int | None = None, where_told: bool = False) -> Iterator[None]:
    """transformers sets first weights module by module; inside, each module has its weights whole meanwhile.

    Stage 3 has sharded them by then. transformers' own remedy (`initialize_weights_zero3`) draws other random numbers
    than its usual way, and on rank 0 only, so stage 3 would start from other weights than stages 0 to 2. Some modules
    also set their direct children's weights.

    Args:
        seed: each module draws from a seed of its own, by its place in the order of initialisation. It is the same at
            every stage, where the random numbers drawn before are not: stage 3 leaves out torch's own first weights.
        where_told: only where transformers was told of stage 3. Code that shards behind its back (`deepspeed.zero.Init`
            without an HfDeepSpeedConfig) keeps the weights that it would have outside of raysweep.
    """
    original, zero3 = PreTrainedModel._initialize_weights, integration.initialize_weights_zero3
    places = itertools.count()

    def initialise(self: PreTrainedModel, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if getattr(module, "_is_hf_initialized", False):
            return
        if seed is not None:
            torch.manual_seed(mix(seed, next(places)))
        owners = (module, *module.children())
        if where_told and not integration.is_deepspeed_zero3_enabled():
            owners = ()
        with gathered(itertools.chain.from_iterable(owner.parameters(recurse=False) for owner in owners)):
            original(self, module, *args, **kwargs)

    PreTrainedModel._initialize_weights = initialise
    integration.initialize_weights_zero3 = PreTrainedModel.initialize_weights
    try:
        yield
    finally:
        PreTrainedModel._initialize_weights = original
        integration.initialize_weights_zero3 = zero3
