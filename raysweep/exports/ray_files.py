"""Ray Train: the script that trains the sweep's own model, for this candidate and this number of workers."""

from __future__ import annotations

from importlib.resources import files

from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import BLOCKS, CONFIG, companions, ds_config_json
from raysweep.exports.provenance import comment, provenance_yaml

SCRIPT = "train_ray.py"
READ_BY_THE_SCRIPT = "best.yaml"


def ray_files(answer: Answer) -> dict[str, str]:
    """`train_ray.py` and what it reads; it has the checkpointed blocks built in."""
    return {
        SCRIPT: comment(answer) + files("raysweep.launch").joinpath(SCRIPT).read_text(),
        CONFIG: ds_config_json(answer),
        READ_BY_THE_SCRIPT: provenance_yaml(answer),
        BLOCKS: companions(answer)[BLOCKS],
    }
