"""Puts peft's low-rank adapters on a model and freezes the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peft import LoraConfig, get_peft_model
from torch import nn

from raysweep.errors import ConfigError


def with_adapters(model: nn.Module, lora: Mapping[str, Any]) -> nn.Module:
    """The model with adapters, in the weights' own dtype, as the only parameters that are trained.

    Args:
        model: a transformers model.
        lora: `r`, `alpha`, `target_modules`, `dropout` of the model section.

    Raises:
        ConfigError: when no module has a name among `target_modules`, or peft has no choice of its own.
    """
    config = LoraConfig(
        r=lora["r"], lora_alpha=lora["alpha"], target_modules=lora["target_modules"], lora_dropout=lora["dropout"]
    )
    try:
        # The engine trains in one dtype; peft would make the adapters fp32.
        return get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise ConfigError(key="model.lora.target_modules", value=lora["target_modules"], rule=str(error)) from error
