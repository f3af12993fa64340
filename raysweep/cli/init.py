"""`raysweep init`: writes a first sweep file from flags, or from a few questions at a terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import typer

from raysweep.cli.terminal import tell_terminal
from raysweep.errors import ConfigError
from raysweep.estimate.facts import with_facts
from raysweep.sweep_file import load_sweep
from raysweep.sweep_template import Answers, sweep_text

QUESTIONS: dict[str, tuple[str, Any]] = {
    "model": ("Model: gpt, a config class of transformers, a config.json, or package.module:function", "gpt"),
    "workers": ("Workers (one a GPU)", 2),
    "global_batch_size": ("Global batch size, samples in one optimizer step", 16),
    "sequence_length": ("Sequence length", 128),
}
"""Answer -> question and what is taken without an answer."""
OPTIONS = {"model": "model", "workers": "workers", "global_batch_size": "batch", "sequence_length": "seq-len"}
"""Answer -> the option that gives it."""


def init(output: str, *, device: str | None, **given: Any) -> None:
    """Write the file.

    Raises:
        ConfigError: when it is there already or cannot be written, when the workers cannot share the batch, or the
            model cannot be built.
    """
    path = Path(output)
    if path.exists():
        raise ConfigError(key="output", value=output, rule="is there already; give another name")
    answers = Answers(
        name=path.stem,
        on_gpu=(device or _device_here()) == "gpu",
        **{name: _ask(name) if value is None else value for name, value in given.items()},
    )
    text = sweep_text(answers)
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(key="output", value=output, rule=f"cannot be written: {error.strerror}") from None
    try:
        with_facts(load_sweep(path), note=tell_terminal)
    except ConfigError:
        path.unlink()  # a file that cannot be planned is no first file
        raise
    typer.echo(f"wrote {output}; next: raysweep plan {output}, raysweep run {output}")


def _ask(name: str) -> Any:
    question, default = QUESTIONS[name]
    if sys.stdin.isatty():
        return typer.prompt(question, default=default, err=True)
    typer.echo(f"--{OPTIONS[name]} was not given: {default} is taken", err=True)
    return default


def _device_here() -> str:
    return "gpu" if shutil.which("nvidia-smi") else "cpu"
