"""The user's own training loops by their kind: a Hugging Face Trainer, or a function that is given a meter."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import deepspeed
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.trial import LaunchRequest
from raysweep.worker.loop_meter import LoopMeter, ModelSeen
from raysweep.worker.user_function import import_function

PLAIN_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 0},
}
"""What a loop is given where only its model is asked for."""


class Meter(Protocol):
    """What a loop tells of its optimizer steps."""

    def step(self, loss: Tensor | float | None = None) -> None:
        """One is through."""
        ...


class UserLoop(Protocol):
    """A loop that is imported and not yet begun."""

    key: str
    """The key and the function, for errors."""

    def run(self, request: LaunchRequest, meter: LoopMeter) -> None:
        """Train the candidate until the meter ends it."""
        ...

    def train(self, request: LaunchRequest, counter: Meter, *, steps: int | None) -> None:
        """Train the winner, as long as `steps` or the user's code say."""
        ...

    def model(self) -> nn.Module:
        """The model that it would train, on the default device (`meta` will do); nothing is trained."""
        ...


def open_loop(model: Mapping[str, Any]) -> UserLoop:
    """The loop of a workload's model section, with all imports done that it needs.

    Raises:
        ConfigError: when the section cannot be right.
        Exception: whatever the user's module raises on import.
    """
    if model["kind"] == "loop":
        return OwnLoop(model)
    assert model["kind"] == "trainer", model["kind"]
    # Only where it is asked for: transformers need not be installed.
    from raysweep.worker.trainer_loop import TrainerLoop

    return TrainerLoop(model)


class OwnLoop:
    """The function `(engine_config, meter, **kwargs)`, imported and not yet called.

    It passes `engine_config`, a dict, on to DeepSpeed as it is: `deepspeed.initialize(config=engine_config, ...)`, or
    Accelerate's `DeepSpeedPlugin(hf_ds_config=engine_config)`. It trains on micro-batches of
    `train_micro_batch_size_per_gpu`, and calls `meter.step()` after each optimizer step, on every rank, without end:
    the meter leaves the loop by an exception once enough is measured.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        self.key = f"model.loop {model['loop']}"
        self._kwargs: Mapping[str, Any] = model["kwargs"]
        self._function = import_function(model, "loop")

    def run(self, request: LaunchRequest, meter: LoopMeter) -> None:
        """See `UserLoop.run`."""
        with _equal_first_weights(request.workload.seed):
            self._function(copy.deepcopy(dict(request.ds_config)), meter, **self._kwargs)

    def train(self, request: LaunchRequest, counter: Meter, *, steps: int | None) -> None:
        """See `UserLoop.train`; the counter ends it after `steps`."""
        self._function(copy.deepcopy(dict(request.ds_config)), counter, **self._kwargs)

    def model(self) -> nn.Module:
        """See `UserLoop.model`.

        Raises:
            ConfigError: when the loop comes to its end without an engine.
        """
        original = deepspeed.initialize
        deepspeed.initialize = _show_model
        try:
            self._function(copy.deepcopy(PLAIN_CONFIG), None, **self._kwargs)
        except ModelSeen as seen:
            return seen.model
        finally:
            deepspeed.initialize = original
        raise ConfigError(key=self.key, rule="made no engine by deepspeed.initialize")


def _show_model(args: Any = None, model: Any = None, **_: Any) -> Any:
    raise ModelSeen(model)


def _equal_first_weights(seed: int) -> AbstractContextManager[None]:
    """First weights of transformers models are the same at every stage inside, where it is told of stage 3."""
    if "transformers" not in sys.modules:
        return nullcontext()
    # Only where the user's module has loaded it.
    from raysweep.worker.hf_model import initialising_whole_weights

    return initialising_whole_weights(seed=seed, where_told=True)
