"""torchrun, the DeepSpeed launcher and Slurm: a training script, and what starts it on every node."""

from __future__ import annotations

from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import CONFIG, companions, ds_config_json
from raysweep.exports.text_templates import fill
from raysweep.model_schema import LOOP_KINDS

SCRIPT = "train_deepspeed.py"
CPU_CORES_WHERE_NONE_ARE_GIVEN = 1


def torchrun_files(answer: Answer) -> dict[str, str]:
    """A script, and two shell scripts that start it: by torchrun and by the DeepSpeed launcher."""
    environment = _environment(answer)
    return {
        **_training(answer),
        "launch_torchrun.sh": fill("launch_torchrun.sh.j2", answer, environment=environment, script=SCRIPT),
        "launch_deepspeed.sh": fill("launch_deepspeed.sh.j2", answer, environment=environment, script=SCRIPT),
    }


def slurm_files(answer: Answer) -> dict[str, str]:
    """The same script, and a batch script for `sbatch`: one task a node, and torchrun in it."""
    cpus = int(answer.sweep.resources_per_worker.get("CPU", CPU_CORES_WHERE_NONE_ARE_GIVEN)) or 1
    return {
        **_training(answer),
        "train.sbatch": fill(
            "train.sbatch.j2",
            answer,
            environment=_environment(answer),
            script=SCRIPT,
            cpus_per_task=cpus * answer.placement.workers_per_node,
        ),
    }


def _training(answer: Answer) -> dict[str, str]:
    """A loop of the user's own is called by a script, which fills in the config; else a plain loop trains the model."""
    model = answer.workload.model
    kind = model["kind"]
    if kind in LOOP_KINDS:
        script = {SCRIPT: fill("train_own_loop.py.j2", answer, kind=kind, function=model[kind])}
    else:
        script = {SCRIPT: fill("train_deepspeed.py.j2", answer), "model.py": fill("model.py.j2", answer)}
    return {
        **script,
        CONFIG: ds_config_json(answer),
        **companions(answer),
    }


def _environment(answer: Answer) -> list[tuple[str, str]]:
    return sorted(answer.workload.environment.items())
