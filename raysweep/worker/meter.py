"""The stopwatch and the scales: whole optimizer steps by the wall clock, peaks by phase, agreed by all ranks."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from raysweep.budget import MeasurementWindow
from raysweep.errors import ConfigError, NoSteps
from raysweep.measurement import has_settled
from raysweep.race import Race, window_end
from raysweep.worker.data import Batches
from raysweep.worker.device import Device, MemoryGauge
from raysweep.worker.process import RankContext
from raysweep.worker.step_log import Mark, Step, StepLog, random_state

T = TypeVar("T")

Following = Generator[Mark, Step, T]
"""Follows steps that somebody else takes: yields what is to be told of the next step's phases, is sent the step."""


class Stepper(StepLog):
    """Takes optimizer steps with an engine and keeps what their losses say."""

    def __init__(
        self,
        *,
        engine: Any,
        batches: Batches,
        gradient_accumulation_steps: int,
        device: Device,
        rank: RankContext,
    ) -> None:
        super().__init__(gradient_accumulation_steps=gradient_accumulation_steps, rank=rank)
        self._engine = engine
        self._batches = batches
        self._device = device
        self._token_counts: list[int | None] = []
        self._data_s = 0.0

    def take(self, mark: Mark = lambda phase: None) -> Step:
        """Take one whole optimizer step: data, every micro-step, clipping, update; timed with the device in step.

        Raises:
            NumericsError: on every rank, when a loss is not finite or too many steps in a row were skipped.
        """
        skipped_before, self._data_s = self._engine.skipped_steps, 0.0
        self._device.synchronize()
        cpu_began_s, began_s = time.process_time(), time.perf_counter()
        losses = [self._micro_step(mark) for _ in range(self._gradient_accumulation_steps)]
        self._device.synchronize()
        time_s, cpu_time_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
        loss = math.fsum(loss.item() for loss in losses) / len(losses)
        skipped = self._engine.skipped_steps > skipped_before
        return self.agree(
            time_s=time_s,
            cpu_time_s=cpu_time_s,
            loss=loss,
            skipped=skipped,
            data_s=self._data_s,
            nonpadding_tokens=self._count_tokens(),
        )

    def _count_tokens(self) -> int | None:
        """Tokens of the last step that are no padding."""
        counts, self._token_counts = self._token_counts, []
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def _micro_step(self, mark: Mark) -> Tensor:
        mark("forward")
        began_s = time.perf_counter()
        on_host = next(self._batches)
        batch = {name: tensor.to(self._device.place, non_blocking=True) for name, tensor in on_host.items()}
        self._data_s += time.perf_counter() - began_s
        self._token_counts.append(_tokens_in(on_host))
        loss = self._forward(batch)
        mark("backward")
        self._engine.backward(loss)
        loss = loss.detach()
        mark("step")
        self._engine.step()
        return loss

    def _forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.losses or self.random_forward:
            return loss_of(self._engine(**batch))
        before = random_state(self._device.place)
        loss = loss_of(self._engine(**batch))
        self.random_forward = random_state(self._device.place) != before
        return loss


def _tokens_in(batch: Mapping[str, Tensor]) -> int | None:
    """Tokens that are no padding: by the attention mask, else all of the inputs; None where it has neither.

    Counted at once, on the host: to keep the mask until the stopwatch stands would keep its bytes, too.
    """
    mask, tokens = batch.get("attention_mask"), batch.get("input_ids")
    if mask is not None and mask.ndim == 2:
        return int(mask.count_nonzero())
    return None if tokens is None else tokens.numel()


def loss_of(output: Any) -> Tensor:
    """The loss of what a model returned; the rest is dropped here, so that logits do not live through the backward.

    Raises:
        ConfigError: when it is not one number.
    """
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(output).__name__}"
        rule = f"model(**batch) must return the loss, or an object that has it as .loss; it returned {found}"
        raise ConfigError(key="model", rule=rule)
    return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Bytes of one rank, build and steps apart."""

    build_peak_bytes: int
    peak_bytes: int
    peak_phase: str
    resting_bytes: int
    phase_peaks_bytes: Mapping[str, int]
    """Phase -> lowest of its peaks over the steady steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepPeak:
    peaks_bytes: Mapping[str, int]
    resting_bytes: int

    @property
    def phase(self) -> str:
        """The phase of the step's peak."""
        return max(self.peaks_bytes, key=self.peaks_bytes.__getitem__)

    @property
    def peak_bytes(self) -> int:
        return self.peaks_bytes[self.phase]


def follow(following: Following[T], stepper: Stepper) -> T:
    """Take the steps that `following` asks for, and give what it says in the end."""
    try:
        mark = next(following)
        while True:
            mark = following.send(stepper.take(mark))
    except StopIteration as end:
        result: T = end.value
        return result


def weigh(stepper: Stepper, gauge: MemoryGauge, *, steps: int) -> MemoryFigures:
    """The memory pass of our own loop; see `weighing`."""
    return follow(weighing(gauge, steps=steps), stepper)


def weighing(gauge: MemoryGauge, *, steps: int) -> Following[MemoryFigures]:
    """The memory pass: `steps` untimed steps, skipped ones not counted, of which the first only makes the state.

    The lowest peak of the steady steps is the true one: gloo may free a tensor late, so noise only adds.
    """
    gc.collect()
    build_peak_bytes = gauge.peak_bytes()
    peaks: list[_StepPeak] = []
    while len(peaks) < steps:
        meter = _PhaseMeter(gauge)
        step = yield meter.enter
        if not step.skipped:
            peaks.append(meter.finish())
    steady_steps = peaks[1:] or peaks
    steady = min(steady_steps, key=lambda step_peak: step_peak.peak_bytes)
    return MemoryFigures(
        build_peak_bytes=build_peak_bytes,
        peak_bytes=steady.peak_bytes,
        peak_phase=steady.phase,
        resting_bytes=min(step_peak.resting_bytes for step_peak in steady_steps),
        phase_peaks_bytes={
            phase: min(step.peaks_bytes[phase] for step in steady_steps) for phase in steady.peaks_bytes
        },
    )


class _PhaseMeter:
    """Peak of each phase of one step."""

    def __init__(self, gauge: MemoryGauge) -> None:
        self._gauge = gauge
        self._peaks: dict[str, int] = {}
        self._phase: str | None = None

    def enter(self, phase: str) -> None:
        self._close_phase()
        self._phase = self._gauge.phase = phase
        self._gauge.reset_peak()

    def _close_phase(self) -> None:
        if self._phase is not None:
            self._peaks[self._phase] = max(self._peaks.get(self._phase, 0), self._gauge.peak_bytes())

    def finish(self) -> _StepPeak:
        self._close_phase()
        return _StepPeak(peaks_bytes=self._peaks, resting_bytes=self._gauge.current_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFigures:
    """The timed window of one rank."""

    step_times_s: tuple[float, ...]
    cpu_time_s: float
    warmup_steps: int
    nonpadding_tokens: int | None
    window_end: str
    data_s: float | None = None
    """Seconds of a step, on average, in which this rank got its batches; None where that is not seen."""


def clock(stepper: Stepper, window: MeasurementWindow, device: Device, race: Race | None = None) -> TimeFigures:
    """The timed part of our own loop; see `clocking`."""
    return follow(clocking(window, device, race), stepper)


def clocking(window: MeasurementWindow, device: Device, race: Race | None = None) -> Following[TimeFigures]:
    """Warm up until settled, then time steps; skipped steps are in neither.

    A race may end the window early, or extend it (`raysweep.race.window_end`).

    Raises:
        NoSteps: when the window asks for none.
    """
    warmup_steps = yield from _warming_up(window)
    device.start_window()
    timed: list[Step] = []
    while (end := window_end([each.time_s for each in timed], window, race)) is None:
        step = yield _no_mark
        if not step.skipped:
            timed.append(step)
    if not timed:
        raise NoSteps(measured=0, wanted=window.measured_steps)
    counts = [step.nonpadding_tokens for step in timed if step.nonpadding_tokens is not None]
    return TimeFigures(
        step_times_s=tuple(step.time_s for step in timed),
        cpu_time_s=math.fsum(step.cpu_time_s for step in timed),
        warmup_steps=warmup_steps,
        nonpadding_tokens=sum(counts) if len(counts) == len(timed) else None,
        window_end=end,
        data_s=_mean([step.data_s for step in timed if step.data_s is not None]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _warming_up(window: MeasurementWindow) -> Following[int]:
    times_s: list[float] = []
    while len(times_s) < window.warmup_max_steps:
        step = yield _no_mark
        if not step.skipped:
            times_s.append(step.time_s)
        settled = has_settled(times_s, last=window.settle_steps, tolerance=window.settle_tolerance)
        if settled and len(times_s) >= window.warmup_min_steps:
            break
    return len(times_s)


def _no_mark(phase: str) -> None:
    """What timed steps tell of their phases: nothing."""
