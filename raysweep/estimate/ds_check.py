"""Asks the installed DeepSpeed, in a subprocess, whether it takes a config; the driver never imports it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from raysweep.errors import ConfigError, PreflightError

CHECK_TIMEOUT_S = 120


def check_ds_configs(configs: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rendered configs that DeepSpeed would refuse, or of which it would ignore a key.

    Raises:
        ConfigError: naming each key, the nearest known one, and DeepSpeed's version.
        PreflightError: when DeepSpeed cannot be imported.
    """
    process = subprocess.run(
        [sys.executable, "-m", "raysweep.estimate.ds_schema"],
        input=json.dumps([dict(config) for config in configs]),
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=False,
    )
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no output"])[-1]
        raise PreflightError(message=f"DeepSpeed cannot be asked about the config: {last}")
    problems = json.loads(process.stdout.strip().splitlines()[-1])
    if problems:
        key, _, rule = str(problems[0]).partition(": ")
        others = "".join(f"\n{problem}" for problem in problems[1:])
        raise ConfigError(key=key, rule=rule + others)
