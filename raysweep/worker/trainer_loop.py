"""Measures a Hugging Face Trainer: sets what the candidate decides, and steps the meter through a callback."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from raysweep.errors import ConfigError
from raysweep.hf_arguments import trainer_fields
from raysweep.trial import LaunchRequest
from raysweep.worker.hf_model import initialising_whole_weights
from raysweep.worker.loop_meter import LoopMeter, ModelSeen, WindowClosed
from raysweep.worker.user_function import import_function

MOST_STEPS = 1_000_000
"""Optimizer steps of a Trainer where the config has no schedule of its own: the meter ends it long before."""

KEPT_OFF = {
    "auto_find_batch_size": False,
    "activation_checkpointing": False,
    "gradient_checkpointing_kwargs": None,
    "activation_checkpointing_kwargs": None,
}
"""Fields of TrainingArguments that would decide what the candidate decides."""

BESIDE_TRAINING = {
    "eval_strategy": "no",
    "eval_on_start": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "report_to": "none",
    **KEPT_OFF,
}
"""Fields of TrainingArguments that would do something else than train, or decide what the candidate decides."""


class TrainerLoop:
    """The user's function that returns a Trainer, imported and not yet called.

    It makes its TrainingArguments and its model itself, in this order, so that stage 3 shards a transformers model as
    it is made. Fields that the candidate decides are set over the user's as the arguments are made.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        self.key = f"model.trainer {model['trainer']}"
        self._kwargs: Mapping[str, Any] = model["kwargs"]
        self._function = import_function(model, "trainer")

    def run(self, request: LaunchRequest, meter: LoopMeter) -> None:
        """See `UserLoop.run`.

        Raises:
            ConfigError: when no Trainer comes, or one that would train something else.
        """
        with decided(candidate_fields(request)), initialising_whole_weights(seed=request.workload.seed):
            trainer = self._function(**self._kwargs)
            self._check(trainer, request)
            trainer.remove_callback(EarlyStoppingCallback)
            trainer.add_callback(_Stepping(meter))
            trainer.train()

    def train(self, request: LaunchRequest, counter: Any, *, steps: int | None) -> None:
        """See `UserLoop.train`: what the candidate decides is set over the user's arguments, and nothing else.

        The learning rate is the config's, which the user's sweep gave; a Trainer counts its steps itself.

        Raises:
            ConfigError: when no Trainer comes, or one that would train something else.
        """
        fields = training_fields(request) | KEPT_OFF | ({} if steps is None else {"max_steps": steps})
        with decided(_known(fields)):
            trainer = self._function(**self._kwargs)
            self._check(trainer, request)
            trainer.train()

    def model(self) -> nn.Module:
        """See `UserLoop.model`.

        Raises:
            ConfigError: when the function makes no Trainer.
        """
        original = Trainer.__init__

        def show(trainer: Any, model: Any = None, *_: Any, model_init: Any = None, **__: Any) -> None:
            raise ModelSeen(model_init() if model is None else model)

        Trainer.__init__ = show
        try:
            made = self._function(**self._kwargs)
        except ModelSeen as seen:
            return seen.model
        finally:
            Trainer.__init__ = original
        raise ConfigError(key=self.key, rule=f"must return a transformers.Trainer; it returned a {type(made).__name__}")

    def _check(self, trainer: Any, request: LaunchRequest) -> None:
        if not isinstance(trainer, Trainer):
            rule = f"must return a transformers.Trainer; it returned a {type(trainer).__name__}"
            raise ConfigError(key=self.key, rule=rule)
        if trainer.args.deepspeed != request.ds_config:
            rule = (
                "must make its TrainingArguments itself, each time that it is called, so that the candidate's are set"
            )
            raise ConfigError(key=self.key, rule=rule)
        if trainer.optimizer is not None:
            rule = "gives the Trainer an optimizer; DeepSpeed's config has one: set `optimizer` in the sweep file"
            raise ConfigError(key=self.key, rule=rule)
        candidate, arguments = request.candidate, trainer.args
        total = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        wanted = request.workload.global_batch_of(
            candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
        )
        if total != wanted:
            rule = f"its Trainer would train on {total} samples a step, the candidate has {wanted}"
            raise ConfigError(key=self.key, rule=rule)


def candidate_fields(request: LaunchRequest) -> dict[str, Any]:
    """Fields of TrainingArguments that are set whatever the user's say; those that this transformers has."""
    fields = {"max_steps": MOST_STEPS, "seed": request.workload.seed, **BESIDE_TRAINING, **training_fields(request)}
    return _known(fields)


def training_fields(request: LaunchRequest) -> dict[str, Any]:
    """Those that say what the candidate's DeepSpeed config says, and that config."""
    workload = request.workload
    return {
        **trainer_fields(request.ds_config, precision=workload.precision, on_cuda=workload.device == "cuda"),
        "deepspeed": copy.deepcopy(dict(request.ds_config)),
    }


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    return {name: value for name, value in fields.items() if name in known}


@contextmanager
def decided(fields: Mapping[str, Any]) -> Iterator[None]:
    """TrainingArguments that are made inside have these fields; subclasses end in the same method."""
    original = TrainingArguments.__post_init__

    def post_init(self: TrainingArguments) -> None:
        for name, value in fields.items():
            setattr(self, name, value)
        original(self)

    TrainingArguments.__post_init__ = post_init
    try:
        yield
    finally:
        TrainingArguments.__post_init__ = original


class _Stepping(TrainerCallback):
    """Tells the meter of each optimizer step, and stops the Trainer when it says so."""

    def __init__(self, meter: LoopMeter) -> None:
        self._meter = meter

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """From the second epoch on samples come again."""
        self._meter.has_cycled |= bool(state.epoch and state.epoch >= 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One optimizer step is through."""
        try:
            self._meter.step()
        except WindowClosed:
            control.should_training_stop = True
