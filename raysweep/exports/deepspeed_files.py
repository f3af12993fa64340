"""DeepSpeed itself: the config as measured, and the code that the config cannot hold."""

from __future__ import annotations

import json

from raysweep.exports.answer import Answer
from raysweep.exports.provenance import provenance_yaml
from raysweep.exports.text_templates import fill

CONFIG = "ds_config.json"
BLOCKS = "checkpoint_blocks.py"
PROVENANCE = "provenance.yaml"


def deepspeed_files(answer: Answer) -> dict[str, str]:
    """`ds_config.json` for `deepspeed.initialize`."""
    return {CONFIG: ds_config_json(answer), **companions(answer)}


def ds_config_json(answer: Answer) -> str:
    """The config exactly as the workers ran it."""
    return json.dumps(answer.ds_config, indent=2) + "\n"


def companions(answer: Answer) -> dict[str, str]:
    """What lies beside every config: how every k-th block is checkpointed, and where the figures come from.

    JSON has no comments and the readers of these files refuse unknown keys, so provenance is a file of its own.
    """
    return {
        BLOCKS: fill("checkpoint_blocks.py.j2", answer, block_lists=list(answer.workload.model.get("block_lists", ()))),
        PROVENANCE: provenance_yaml(answer),
    }
