"""The stopwatch and the scales: whole optimizer steps by the wall clock, peaks by phase, agreed by all ranks."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysweep.budget import MeasurementWindow
from raysweep.errors import ConfigError, NoSteps, NumericsError
from raysweep.measurement import has_settled
from raysweep.race import Race, window_end
from raysweep.worker.data import Batches
from raysweep.worker.device import Device, MemoryGauge
from raysweep.worker.process import RankContext

MOST_SKIPPED_IN_A_ROW = 20
"""Loss scaling halves from 2**16 on overflow; it has run out of room long before this many skipped steps."""

Mark = Callable[[str], None]
"""Told the phase that begins: forward, backward or step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step, as all ranks agreed on it."""

    time_s: float
    """The slowest rank's."""
    cpu_time_s: float
    """This rank's process CPU time."""
    skipped: bool
    """Whether loss-scale overflow skipped the update."""
    nonpadding_tokens: int | None
    """Of this rank; None where its batches show neither a mask nor tokens."""


class Stepper:
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
        self._engine = engine
        self._batches = batches
        self._gradient_accumulation_steps = gradient_accumulation_steps
        self._device = device
        self._rank = rank
        self._skipped_in_a_row = 0
        self._token_masks: list[Tensor | None] = []
        self.losses: list[float] = []
        """Mean loss of this rank's micro-batches, for each step from the engine's first."""
        self.skipped_steps = 0
        self.random_forward = False
        """Whether the first step's forward passes drew random numbers."""

    @property
    def micro_steps(self) -> int:
        """Micro-steps taken so far."""
        return len(self.losses) * self._gradient_accumulation_steps

    def take(self, mark: Mark = lambda phase: None) -> Step:
        """Take one whole optimizer step: data, every micro-step, clipping, update; timed with the device in step.

        Raises:
            NumericsError: on every rank, when a loss is not finite or too many steps in a row were skipped.
        """
        skipped_before = self._engine.skipped_steps
        self._device.synchronize()
        cpu_began_s, began_s = time.process_time(), time.perf_counter()
        losses = [self._micro_step(mark) for _ in range(self._gradient_accumulation_steps)]
        self._device.synchronize()
        time_s, cpu_time_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
        loss = math.fsum(loss.item() for loss in losses) / len(losses)
        skipped_here = self._engine.skipped_steps > skipped_before
        slowest_s, skipped, broken = self._rank.largest(
            [time_s, float(skipped_here), 0.0 if math.isfinite(loss) else 1.0 + self._rank.rank]
        )
        self._note(loss, skipped=bool(skipped), broken_rank=int(broken) - 1 if broken else None)
        return Step(
            time_s=slowest_s,
            cpu_time_s=cpu_time_s,
            skipped=bool(skipped),
            nonpadding_tokens=self._count_tokens(),
        )

    def _count_tokens(self) -> int | None:
        """Tokens of the last step that are no padding; counted behind the stopwatch."""
        masks, self._token_masks = self._token_masks, []
        counts = [int(mask.count_nonzero()) for mask in masks if mask is not None]
        return sum(counts) if len(counts) == len(masks) else None

    def _micro_step(self, mark: Mark) -> Tensor:
        mark("forward")
        on_host = next(self._batches)
        self._token_masks.append(_token_mask(on_host))
        batch = {name: tensor.to(self._device.place, non_blocking=True) for name, tensor in on_host.items()}
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
        before = _random_state(self._device.place)
        loss = loss_of(self._engine(**batch))
        self.random_forward = _random_state(self._device.place) != before
        return loss

    def _note(self, loss: float, *, skipped: bool, broken_rank: int | None) -> None:
        """Keep what a step showed; `broken_rank` is one whose loss is not finite."""
        self.losses.append(loss)
        self.skipped_steps += skipped
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        place = {} if broken_rank is None else {"rank": broken_rank}
        if broken_rank is not None and not skipped:
            message = f"the loss is not finite in step {len(self.losses)} (this rank's: {loss})"
            raise NumericsError(message=message, **place)
        if self._skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
            message = f"{self._skipped_in_a_row} steps in a row were skipped: gradients are not finite (loss: {loss})"
            raise NumericsError(message=message, **place)


def _token_mask(batch: Mapping[str, Tensor]) -> Tensor | None:
    """Nonzero where a token counts: the attention mask, else every token of the inputs; None where it has neither."""
    mask, tokens = batch.get("attention_mask"), batch.get("input_ids")
    if mask is not None and mask.ndim == 2:
        return mask
    return None if tokens is None else torch.ones((), dtype=torch.bool).expand(tokens.shape)


def _random_state(place: torch.device) -> bytes:
    """The state of the generators that a forward pass may draw from."""
    states = [torch.get_rng_state()]
    if place.type == "cuda":
        states.append(torch.cuda.get_rng_state(place))
    return b"".join(bytes(state.tolist()) for state in states)


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


def weigh(stepper: Stepper, gauge: MemoryGauge, *, steps: int) -> MemoryFigures:
    """The memory pass: `steps` untimed steps, skipped ones not counted, of which the first only makes the state.

    The lowest peak of the steady steps is the true one: gloo may free a tensor late, so noise only adds.
    """
    gc.collect()
    build_peak_bytes = gauge.peak_bytes()
    peaks: list[_StepPeak] = []
    while len(peaks) < steps:
        meter = _PhaseMeter(gauge)
        step = stepper.take(meter.enter)
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


def clock(stepper: Stepper, window: MeasurementWindow, device: Device, race: Race | None = None) -> TimeFigures:
    """Warm up until settled, then time steps; skipped steps are in neither.

    A race may end the window early, or extend it (`raysweep.race.window_end`).

    Raises:
        NoSteps: when the window asks for none.
    """
    warmup_steps = _warm_up(stepper, window)
    device.start_window()
    timed: list[Step] = []
    while (end := window_end([each.time_s for each in timed], window, race)) is None:
        step = stepper.take()
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
    )


def _warm_up(stepper: Stepper, window: MeasurementWindow) -> int:
    times_s: list[float] = []
    while len(times_s) < window.warmup_max_steps:
        step = stepper.take()
        if not step.skipped:
            times_s.append(step.time_s)
        settled = has_settled(times_s, last=window.settle_steps, tolerance=window.settle_tolerance)
        if settled and len(times_s) >= window.warmup_min_steps:
            break
    return len(times_s)
