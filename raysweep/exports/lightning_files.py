"""Lightning: a DeepSpeed config without accumulation, which its Trainer must be told, and the Trainer's arguments."""

from __future__ import annotations

import json
from typing import Any

from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import CONFIG, companions
from raysweep.exports.text_templates import fill

ARGUMENTS = "lightning_trainer.json"
PRECISIONS = {"bf16": "bf16-true", "fp16": "16-true", "fp32": "32-true"}
"""`true`: the weights themselves are in this precision, as they were when it was measured."""


def lightning_files(answer: Answer) -> dict[str, str]:
    """Config and arguments, and the code that puts both into a Trainer."""
    config = {key: value for key, value in answer.ds_config.items() if key != "gradient_accumulation_steps"}
    return {
        CONFIG: json.dumps(config, indent=2) + "\n",
        ARGUMENTS: json.dumps(trainer_arguments(answer), indent=2) + "\n",
        "trainer_lightning.py": fill("trainer_lightning.py.j2", answer),
        **companions(answer),
    }


def trainer_arguments(answer: Answer) -> dict[str, Any]:
    """Arguments of `lightning.pytorch.Trainer`, the strategy left out.

    Lightning runs DeepSpeed on CUDA only, so the accelerator is that, also where a sweep ran on CPU.
    """
    return {
        "accelerator": "cuda",
        "devices": answer.placement.workers_per_node,
        "num_nodes": answer.placement.nodes,
        "precision": PRECISIONS[answer.workload.precision],
        "accumulate_grad_batches": answer.candidate.gradient_accumulation_steps,
    }
