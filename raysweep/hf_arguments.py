"""Tells a DeepSpeed config in the fields of Hugging Face's TrainingArguments, without 'auto'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysweep.ds_config import DEFAULT_OPTIMIZER


def trainer_fields(config: Mapping[str, Any], *, precision: str, on_cuda: bool) -> dict[str, Any]:
    """Fields of TrainingArguments that say the same as a rendered DeepSpeed config, less `deepspeed` itself.

    The Trainer compares each with its counterpart in the DeepSpeed config and refuses a difference
    (`HfTrainerDeepSpeedConfig.trainer_config_process` of transformers), so what that holds is taken from there.
    """
    return {
        "per_device_train_batch_size": config["train_micro_batch_size_per_gpu"],
        "gradient_accumulation_steps": config["gradient_accumulation_steps"],
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        # DeepSpeed clips where its config says so, and 0 is its word for no clipping.
        "max_grad_norm": config.get("gradient_clipping", 0.0),
        "gradient_checkpointing": False,
        "dataloader_drop_last": True,
        "use_cpu": not on_cuda,
        **_optimizer_fields(config["optimizer"]),
        **_schedule_fields(config.get("scheduler", {})),
    }


def _optimizer_fields(optimizer: Any) -> dict[str, Any]:
    params = optimizer.get("params", {})
    fields = {"learning_rate": params.get("lr", DEFAULT_OPTIMIZER["params"]["lr"])}  # type: ignore[index]
    for name, key in (("adam_epsilon", "eps"), ("weight_decay", "weight_decay")):
        if key in params:
            fields[name] = params[key]
    if "betas" in params:
        fields["adam_beta1"], fields["adam_beta2"] = params["betas"]
    return fields


def _schedule_fields(scheduler: Any) -> dict[str, Any]:
    params = scheduler.get("params", {})
    names = {"max_steps": "total_num_steps", "warmup_steps": "warmup_num_steps"}
    return {name: params[key] for name, key in names.items() if key in params}
