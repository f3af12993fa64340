"""Hugging Face Trainer: TrainingArguments that say the same as the DeepSpeed config, without 'auto'."""

from __future__ import annotations

import json
from typing import Any

from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import CONFIG, companions, ds_config_json
from raysweep.exports.text_templates import fill
from raysweep.hf_arguments import trainer_fields

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
    """Fields of TrainingArguments; see `raysweep.hf_arguments.trainer_fields`."""
    fields = trainer_fields(answer.ds_config, precision=answer.workload.precision, on_cuda=answer.on_cuda)
    return {"output_dir": "trainer_output", "deepspeed": CONFIG, **fields}
