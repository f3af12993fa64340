"""Checks a DeepSpeed config against the schema of the installed DeepSpeed; run as a subprocess of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from raysweep.errors import nearest_name


class _RecordingDict(dict[str, Any]):
    """A config that notes which top-level keys DeepSpeed asks it for: DeepSpeed has no list of them."""

    def __init__(self, plain: dict[str, Any], asked: set[str]) -> None:
        super().__init__(plain)
        self.asked = asked

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> _RecordingDict:
        return self


def find_problems(config: dict[str, Any]) -> list[str]:
    """What the installed DeepSpeed refuses or would silently ignore in a config, a sentence each."""
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

    asked: set[str] = set()
    version = f"DeepSpeed {deepspeed.__version__}"
    try:
        DeepSpeedConfig(_RecordingDict(config, asked))
    except ValidationError as error:
        return [_describe(problem, _section(config, error.title), error.title, version) for problem in error.errors()]
    except (DeepSpeedConfigError, ValueError, TypeError, AssertionError) as error:
        return [f"deepspeed: {error} ({version})"]
    unknown = sorted(key for key in config if key not in asked)
    return [f"deepspeed.{key}: unknown to {version}{_nearest(key, asked)}" for key in unknown]


def _describe(problem: Any, section: str, model_name: str, version: str) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"deepspeed.{section}{path}: {problem['input']!r}: {problem['msg']} ({version})"
    # The title names the outermost model only; a key of a nested one is looked for among all of DeepSpeed's.
    models = [model for model in _models() if model.__module__.startswith("deepspeed.")]
    own = [model for model in models if model.__name__ == model_name and len(problem["loc"]) == 1]
    known = {name for model in own or models for name in model.model_fields}
    return f"deepspeed.{section}{path}: unknown to {version}{_nearest(str(problem['loc'][-1]), known)}"


def _nearest(key: str, known: set[str]) -> str:
    near = nearest_name(key, known)
    return f" (nearest valid: {near})" if near else ""


def _section(config: dict[str, Any], model_name: str) -> str:
    """The section whose keys a DeepSpeed config model holds: `DeepSpeedZeroConfig` reads `zero_optimization`."""
    words = {"zero": "zero_optimization", "bf16": "bf16", "fp16": "fp16"}
    found = next((section for word, section in words.items() if word in model_name.lower() and section in config), "")
    return f"{found}." if found else ""


def _models(base: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def main() -> None:
    """Read configs (a JSON list) from standard input; write their problems (a JSON list) as the last line of output."""
    if "DS_ACCELERATOR" not in os.environ:
        os.environ["DS_ACCELERATOR"] = "cpu"
    problems = [problem for config in json.load(sys.stdin) for problem in find_problems(config)]
    print(json.dumps(list(dict.fromkeys(problems))))


if __name__ == "__main__":
    main()
