"""Trains in the user's own loop with the winner's config, as it was measured: what exported scripts call."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import deepspeed
import torch
from torch import Tensor

from raysweep.trial import LaunchRequest
from raysweep.worker.blocks import checkpoint_blocks, find_block_lists
from raysweep.worker.engine import undo_constructor_step
from raysweep.worker.loop_meter import WindowClosed
from raysweep.worker.process import RankContext
from raysweep.worker.user_loops import open_loop


class StepCounter:
    """What a `loop` is given in place of the meter: it counts the optimizer steps, and ends the loop after the last."""

    def __init__(self, request: LaunchRequest, rank: RankContext, *, steps: int | None) -> None:
        self._steps = steps
        self._is_first_rank = rank.rank == 0
        candidate = request.candidate
        self._samples = request.workload.global_batch_of(
            candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
        )
        self.steps_taken = 0
        self.has_cycled = False
        """For loops that tell the meter of samples that come a second time; nothing is made of it."""
        self._began_s = time.perf_counter()

    def step(self, loss: Tensor | float | None = None) -> None:
        """End an optimizer step.

        Raises:
            WindowClosed: it was the last.
        """
        self.steps_taken += 1
        now_s = time.perf_counter()
        if self._is_first_rank:
            value = loss.item() if isinstance(loss, Tensor) else loss
            told = "" if value is None else f"loss {value:.4f}, "
            print(f"step {self.steps_taken}: {told}{self._samples / (now_s - self._began_s):.1f} samples/s", flush=True)
        self._began_s = now_s
        if self.steps_taken == self._steps:
            raise WindowClosed


def train_own(request: LaunchRequest, rank: RankContext, *, steps: int | None, save: str | None = None) -> Any:
    """Train on this rank, in a process that is ready for DeepSpeed; the engine that was trained.

    A Trainer has its batch, precision, optimizer and DeepSpeed config set over what its arguments say, as when it was
    measured; evaluation, saving and the end are its own. A loop is given the config, and a meter that counts.

    Args:
        request: the winner, with its workload and config.
        rank: this process.
        steps: optimizer steps to take; None: the Trainer's own, and a loop goes on until it ends by itself.
        save: folder for DeepSpeed's checkpoint after the last step.

    Raises:
        ConfigError: when the user's function is not there or gives something else than it must.
    """
    torch.manual_seed(request.workload.seed)
    loop = open_loop(request.workload.model)
    counter = StepCounter(request, rank, steps=steps)
    with _as_measured(request) as engines, suppress(WindowClosed):
        loop.train(request, counter, steps=steps)
    engine = engines[-1]
    if save:
        engine.save_checkpoint(save)
    return engine


@contextmanager
def _as_measured(request: LaunchRequest) -> Iterator[list[Any]]:
    """`deepspeed.initialize` checkpoints every k-th block inside; the engines that it made.

    The constructor's step of DeepSpeed's FP16 wrappers is taken back, as it was in the measurement.
    """
    original = deepspeed.initialize
    signature = inspect.signature(original)
    engines: list[Any] = []

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        model = signature.bind(*args, **kwargs).arguments["model"]
        block_lists = find_block_lists(model, names=request.workload.model["block_lists"])
        checkpoint_blocks(block_lists, request.candidate.activation_checkpoint_interval)
        made = original(*args, **kwargs)
        undo_constructor_step(made[0])
        engines.append(made[0])
        return made

    deepspeed.initialize = initialize
    try:
        yield engines
    finally:
        deepspeed.initialize = original
