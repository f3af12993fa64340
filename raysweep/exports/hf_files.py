"""Hugging Face Trainer: TrainingArguments that say the same as the DeepSpeed config, without 'auto'."""

from __future__ import annotations

import json
from typing import Any

from raysweep.ds_config import DEFAULT_OPTIMIZER
from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import CONFIG, companions, ds_config_json
from raysweep.exports.text_templates import fill

ARGUMENTS = "training_arguments.json"


def hf_files(answer: Answer) -> dict[str, str]:
    """Arguments and config for a Trainer, and the code that puts both into one."""
    return {
        CONFIG: ds_config_json(answer),
        ARGUMENTS: json.dumps(training_arguments(answer), indent=2) + "\n",
        "trainer_hf.py": fill("trainer_hf.py.j2", answer),
        **companions(answer),
    }


def training_arguments(answer: Answer) -> dict[str, Any]:
    """Fields of TrainingArguments.

    The Trainer compares each with its counterpart in the DeepSpeed config and refuses a difference
    (`HfTrainerDeepSpeedConfig.trainer_config_process` of transformers), so what that holds is taken from there.
    """
    config, precision = answer.ds_config, answer.workload.precision
    return {
        "output_dir": "trainer_output",
        "deepspeed": CONFIG,
        "per_device_train_batch_size": answer.candidate.micro_batch_size_per_gpu,
        "gradient_accumulation_steps": answer.candidate.gradient_accumulation_steps,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        # DeepSpeed clips where its config says so, and 0 is its word for no clipping.
        "max_grad_norm": config.get("gradient_clipping", 0.0),
        "gradient_checkpointing": False,
        "dataloader_drop_last": True,
        "use_cpu": not answer.on_cuda,
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
