"""The stopwatch for a loop that is not ours: told of each optimizer step, it ends the loop once enough are timed."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.trial import LaunchRequest
from raysweep.worker.blocks import BlockCounter, checkpoint_blocks, find_block_lists
from raysweep.worker.device import Device
from raysweep.worker.engine import undo_constructor_step
from raysweep.worker.meter import Following
from raysweep.worker.process import RankContext
from raysweep.worker.step_log import Mark, StepLog, random_state


class WindowClosed(BaseException):
    """Leaves a loop that has been measured. No `Exception`: a loop that goes on after errors does not catch it."""


class LoopMeter(StepLog):
    """What a `loop` is given: call `step()` at the end of every optimizer step.

    It sees the engine when `deepspeed.initialize` makes it, also where Accelerate or the Trainer call that. Blocks are
    checkpointed then, and forward, backward and step of the engine tell the phases, the losses and the micro-batches.
    """

    def __init__(
        self,
        request: LaunchRequest,
        rank: RankContext,
        device: Device,
        *,
        following: Following[None],
        block_lists: Sequence[str],
        key: str,
    ) -> None:
        super().__init__(
            gradient_accumulation_steps=request.candidate.gradient_accumulation_steps,
            rank=rank,
        )
        self.engine: Any = None
        self.counter = BlockCounter([])
        self.build_s = 0.0
        """From the start of the loop to the engine's first forward pass."""
        self.has_cycled = False
        """Whether samples have come a second time, as far as the loop has told."""
        self._request = request
        self._device = device
        self._following = following
        self._block_lists = block_lists
        self._key = key
        self._mark: Mark | None = None
        self._micro_steps = 0
        self._forwards = 0
        self._losses: list[Tensor] = []
        self._loss_is_shared = False
        self._skipped_before = 0
        self._random_state_before: bytes | None = None
        self._began_s, self._cpu_began_s = time.perf_counter(), time.process_time()

    @property
    def micro_steps(self) -> int:
        """Micro-steps taken so far, those of a step that the data ended included."""
        return self._micro_steps

    def step(self, loss: Tensor | float | None = None) -> None:
        """End an optimizer step: all its micro-batches are through, and the engine has stepped. Every rank calls it.

        Args:
            loss: mean loss of this rank's micro-batches; only where the loop does not call `engine.backward(loss)`.

        Raises:
            WindowClosed: enough is measured; let it pass.
            ConfigError: the step was none of the candidate's.
            Exception: what else ends a candidate: out of memory, a loss that is not finite.
        """
        self._device.synchronize()
        time_s, cpu_time_s = time.perf_counter() - self._began_s, time.process_time() - self._cpu_began_s
        is_partial = self._check_micro_batches()
        skipped = self.engine.skipped_steps > self._skipped_before
        step = self.agree(
            time_s=time_s, cpu_time_s=cpu_time_s, loss=self._mean_loss(loss), skipped=skipped, is_partial=is_partial
        )
        self._micro_steps += self._forwards
        self._forwards, self._skipped_before = 0, self.engine.skipped_steps
        try:
            self._mark = self._following.send(step)
        except StopIteration:
            raise WindowClosed from None
        self._start_step()

    def _start_step(self) -> None:
        self._tell("forward")
        self._device.synchronize()
        self._began_s, self._cpu_began_s = time.perf_counter(), time.process_time()

    def _check_micro_batches(self) -> bool:
        """Whether the step had fewer micro-batches than the candidate's."""
        wanted = self._gradient_accumulation_steps
        if self.engine is None or not self._forwards:
            rule = "called meter.step() before an engine that deepspeed.initialize made had a forward pass"
            raise ConfigError(key=self._key, rule=rule)
        if self._forwards > wanted or (self._forwards < wanted and not self.losses):
            rule = f"must call meter.step() after every {wanted} micro-batches; it did so after {self._forwards}"
            raise ConfigError(key=self._key, rule=rule)
        is_partial = self._forwards < wanted
        self.has_cycled |= is_partial
        return is_partial

    def _mean_loss(self, told: Tensor | float | None) -> float:
        losses = [loss.item() for loss in self._losses]
        self._losses.clear()
        if told is not None:
            return float(told)
        if not losses:
            rule = "shows no loss: call engine.backward(loss), or meter.step(loss)"
            raise ConfigError(key=self._key, rule=rule)
        # A loop that divides by the accumulation itself says so to the engine.
        return math.fsum(losses) / (1 if self._loss_is_shared else len(losses))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """`deepspeed.initialize` prepares the model and shows its engine inside.

        Raises:
            ConfigError: when the engine is not the candidate's.
        """
        original = deepspeed.initialize
        signature = inspect.signature(original)

        @functools.wraps(original)
        def initialize(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            self._prepare(given.get("model"))
            made = original(*args, **kwargs)
            self._watch(made[0])
            return made

        self._began_s, self._cpu_began_s = time.perf_counter(), time.process_time()
        deepspeed.initialize = initialize
        try:
            yield
        finally:
            deepspeed.initialize = original

    def _prepare(self, model: Any) -> None:
        if self.engine is not None:
            raise ConfigError(key=self._key, rule="called deepspeed.initialize twice; one engine is measured")
        block_lists = find_block_lists(model, names=self._block_lists)
        self.counter = BlockCounter(block_lists)
        checkpoint_blocks(block_lists, self._request.candidate.activation_checkpoint_interval)

    def _watch(self, engine: Any) -> None:
        self.engine = engine
        self._check_engine()
        undo_constructor_step(engine)
        engine.register_forward_pre_hook(self._forward_begins, with_kwargs=True)
        engine.register_forward_hook(self._forward_ends)
        engine.backward = self._seen_backward(engine.backward)
        engine.step = self._seen_step(engine.step)

    def _check_engine(self) -> None:
        candidate = self._request.candidate
        found = {
            "zero_stage": self.engine.zero_optimization_stage(),
            "micro_batch_size_per_gpu": self.engine.train_micro_batch_size_per_gpu(),
            "gradient_accumulation_steps": self.engine.gradient_accumulation_steps(),
        }
        other = {name: value for name, value in found.items() if value != getattr(candidate, name)}
        if other:
            differences = ", ".join(f"{name} {value} for {getattr(candidate, name)}" for name, value in other.items())
            rule = f"its engine is not the candidate's: {differences}; pass the config on to DeepSpeed as it is"
            raise ConfigError(key=self._key, rule=rule)

    def _forward_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (torch.is_grad_enabled() and module.training):
            return
        if self._mark is None:
            self.build_s = time.perf_counter() - self._began_s
            self._mark = next(self._following)
            self._start_step()
        elif self._forwards:
            # An update need not lie between two micro-batches: Accelerate leaves out calls that would do nothing.
            self._tell("forward")
        self._forwards += 1
        self._check_rows([*args, *kwargs.values()])
        if not self.losses and not self.random_forward:
            self._random_state_before = random_state(self._device.place)

    def _check_rows(self, inputs: Sequence[Any]) -> None:
        """A loop that takes batches of its own size must not be credited with the candidate's."""
        wanted = self._request.candidate.micro_batch_size_per_gpu
        shapes = [tuple(value.shape) for value in inputs if isinstance(value, Tensor)]
        if shapes and not any(wanted in shape for shape in shapes):
            rule = (
                f"must train on micro-batches of {wanted} (train_micro_batch_size_per_gpu of the config); the engine "
                f"was given tensors of {', '.join(map(str, shapes))}"
            )
            raise ConfigError(key=self._key, rule=rule)

    def _forward_ends(self, *_: Any) -> None:
        if self._random_state_before is not None:
            self.random_forward = random_state(self._device.place) != self._random_state_before
            self._random_state_before = None

    def _seen_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Written out, because DeepSpeed's decorators hide the signature.
        @functools.wraps(original)
        def backward(loss: Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True, **kwargs: Any) -> Any:
            self._loss_is_shared = not scale_wrt_gas
            self._tell("backward")
            result = original(loss, retain_graph=retain_graph, scale_wrt_gas=scale_wrt_gas, **kwargs)
            self._losses.append(loss.detach())
            return result

        return backward

    def _seen_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            self._tell("step")
            return original(*args, **kwargs)

        return step

    def _tell(self, phase: str) -> None:
        if self._mark is not None:
            self._mark(phase)
