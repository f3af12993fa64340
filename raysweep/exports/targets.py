"""The table of targets, and the writing of their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from raysweep.errors import ConfigError, nearest_name
from raysweep.exports.accelerate_files import accelerate_files
from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import deepspeed_files
from raysweep.exports.hf_files import hf_files
from raysweep.exports.kuberay_files import kuberay_files
from raysweep.exports.launcher_files import slurm_files, torchrun_files
from raysweep.exports.lightning_files import lightning_files
from raysweep.exports.ray_files import ray_files
from raysweep.exports.text_templates import fill

TARGETS: dict[str, Callable[[Answer], dict[str, str]]] = {
    "deepspeed": deepspeed_files,
    "accelerate": accelerate_files,
    "hf": hf_files,
    "lightning": lightning_files,
    "ray": ray_files,
    "torchrun": torchrun_files,
    "slurm": slurm_files,
    "kuberay": kuberay_files,
}
"""Name -> what gives the files of its folder: name -> text."""


def parse_targets(text: str) -> list[str]:
    """Names from `hf,slurm`, each once, in their order; `all` is all of them.

    Raises:
        ConfigError: for a name that is no target, or none at all.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return list(TARGETS)
    for name in names:
        if name not in TARGETS:
            raise ConfigError(
                key="--to",
                value=name,
                rule=f"is no target; known: {', '.join(TARGETS)}, all",
                nearest=nearest_name(name, TARGETS),
            )
    if not names:
        raise ConfigError(key="--to", value=text, rule=f"names no target; known: {', '.join(TARGETS)}, all")
    return list(dict.fromkeys(names))


def write_targets(answer: Answer, targets: Sequence[str], folder: str | Path) -> list[Path]:
    """Write a folder a target below `folder`, and a README.md beside them; the files, in the order written.

    A file of an earlier export under the same name is replaced, others stay.

    Raises:
        OSError: when a file cannot be written.
    """
    folder = Path(folder)
    texts: dict[str, str] = {}
    for target in targets:
        texts |= {f"{target}/{name}": text for name, text in TARGETS[target](answer).items()}
    texts["README.md"] = fill("README.md.j2", answer, targets=list(targets), files=sorted(texts))
    written = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)
        written.append(path)
    return written
