"""Predicts a sweep's candidates at another number of workers, from what was measured at the sweep's own."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raysweep.candidate import Candidate
from raysweep.ds_config import render
from raysweep.errors import ConfigError, NothingSucceeded
from raysweep.measurement import median_log_error
from raysweep.memory import MemoryEstimate, estimate_memory
from raysweep.probe import Probe, alpha_beta
from raysweep.results.journal import JournalContents
from raysweep.search.prior import rates
from raysweep.search.step_time import Array, Forecast, Observation, StepPoint, StepTimeModel
from raysweep.step_work import deeper, step_work
from raysweep.trial import Measurement, SweepStart
from raysweep.workload import Workload, accumulation_for, nearest_global_batches
from raysweep.zero_settings import ZeroSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Where the candidates are predicted."""

    world_size: int
    global_batch_size: int | None = None
    """Samples in an optimizer step; None: the sweep's own, which where it is free grows with the workers."""
    link_bytes_per_s: float | None = None
    """Of the slowest link that a rank sends over; None: that of the sweep's own workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One candidate at another number of workers. Nothing of it was measured."""

    candidate: Candidate
    global_batch_size: int
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    """Two standard deviations below and above."""
    efficiency: float
    """Samples/s a worker, over those of the fastest measured candidate with the most workers of the sweep."""
    memory: MemoryEstimate | None
    fits: bool | None
    """Whether the predicted peak is within the budget; None where either is not known."""


def predict(
    contents: JournalContents, scale: Scale, *, traced: Mapping[str, MemoryEstimate] | None = None
) -> list[Prediction]:
    """Every distinct candidate of a sweep at another size, fastest first; what certainly does not fit comes last.

    The step-time model is fitted to the sweep's launches and asked for the work that a step has at the other size:
    smaller shares, more bytes sent, other accumulation. Calls of all-reduce count log2 N / log2 N0 times, as a tree of
    N ranks is that much deeper. With a link, a byte costs what it was measured to cost times how much slower the link
    is than the one that the micro-benchmark met; without a micro-benchmark it costs what the link takes for it.

    Args:
        contents: the journal of the sweep.
        scale: where to predict.
        traced: candidate_id at that size -> memory by a fake engine trace, in place of the closed form.

    Raises:
        NothingSucceeded: when nothing was measured.
        ConfigError: when no candidate can give the global batch.
    """
    start = contents.sweep
    observed = _observed(contents)
    if not observed:
        raise NothingSucceeded(message="no launch has figures, so there is nothing to predict from")
    workload = workload_at(start, scale)
    measured = [row.candidate for row in start.plan_rows if row.candidate.candidate_id in observed]
    scaled = candidates_at(start, scale)
    largest = max(start.workload.of(each).world_size for each in measured)
    points = [_point(each, start.workload.of(each), start, reference=largest) for each in measured]
    points += [_point(each, workload.of(each), start, reference=largest) for each in scaled]
    model = StepTimeModel(points, device=workload.device)
    probes = [each.probe for each in contents.measurements if each.probe]
    model.start_from(rates(workload.device, probes, world_size=largest))
    forecast = model.fit({place: observed[each.candidate_id] for place, each in enumerate(measured)})
    work = points[len(measured) :]
    times_s = forecast.step_time_s[len(measured) :] * _of_link(
        forecast, work, scale, probes, replace(start.workload, world_size=largest)
    )
    best_measured = _fastest_of(start, observed, world_size=largest)
    found = []
    for place, candidate in enumerate(scaled):
        samples = workload.global_batch_of(candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps)
        rate = samples / float(times_s[place])
        spread = math.exp(2 * float(forecast.log_sd[len(measured) + place]))
        memory = (traced or {}).get(candidate.candidate_id) or _memory(candidate, workload, start)
        found.append(
            Prediction(
                candidate=candidate,
                global_batch_size=samples,
                samples_per_s=rate,
                samples_per_s_low=rate / spread,
                samples_per_s_high=rate * spread,
                efficiency=rate / workload.world_size / (best_measured / largest),
                memory=memory,
                fits=_fits(memory, start.memory_budget_bytes),
            )
        )
    return sorted(found, key=lambda each: (each.fits is False, -each.samples_per_s))


def _fastest_of(start: SweepStart, observed: Mapping[str, Observation], *, world_size: int) -> float:
    """Samples/s of the fastest candidate that was measured with a number of workers."""
    return max(
        row.global_batch_size / observed[row.candidate.candidate_id].step_time_s
        for row in start.plan_rows
        if row.candidate.candidate_id in observed and row.world_size == world_size
    )


def workload_at(start: SweepStart, scale: Scale) -> Workload:
    """The sweep's workload with other workers and, where one is given, another global batch."""
    batch = scale.global_batch_size or start.workload.global_batch_size
    return replace(start.workload, world_size=scale.world_size, global_batch_size=batch)


def candidates_at(start: SweepStart, scale: Scale) -> list[Candidate]:
    """The sweep's candidates at another size: the accumulation follows from the global batch, where one is fixed.

    Raises:
        ConfigError: naming the nearest totals, when none can give it.
    """
    workload = workload_at(start, scale)
    found: dict[str, Candidate] = {}
    for row in start.plan_rows:
        accumulation: int | None = row.candidate.gradient_accumulation_steps
        if workload.global_batch_size is not None:
            micro_batch = row.candidate.micro_batch_size_per_gpu
            accumulation = accumulation_for(workload.global_batch_size, micro_batch, workload.world_size)
        if accumulation:
            candidate = replace(row.candidate, gradient_accumulation_steps=accumulation, world_size=None)
            found[candidate.candidate_id] = candidate
    if not found:
        totals = nearest_global_batches(workload.global_batch_size or 0, workload.world_size)
        raise ConfigError(
            key="--global-batch",
            value=workload.global_batch_size,
            rule=f"{workload.world_size} workers cannot share it with any micro-batch of the sweep",
            nearest=" or ".join(map(str, totals)) or str(workload.world_size),
        )
    return list(found.values())


def _observed(contents: JournalContents) -> dict[str, Observation]:
    """Candidate id -> the geometric mean of its launches' step times."""
    launches: dict[str, list[Measurement]] = {}
    for each in contents.measurements:
        if each.figures:
            launches.setdefault(each.candidate_id, []).append(each)
    return {name: _mean_of(measurements) for name, measurements in launches.items()}


def _mean_of(measurements: Sequence[Measurement]) -> Observation:
    figures = [each.figures for each in measurements if each.figures]
    errors = [
        median_log_error(median=each.step_time_s_median, iqr=each.step_time_s_iqr, count=each.measured_steps)
        for each in figures
    ]
    return Observation(
        step_time_s=statistics.geometric_mean(each.step_time_s_median for each in figures),
        log_error=math.sqrt(math.fsum(error**2 for error in errors)) / len(errors),
    )


def _settings(candidate: Candidate, workload: Workload, start: SweepStart) -> ZeroSettings:
    return ZeroSettings.from_ds_config(render(candidate, workload=workload, base=start.base_ds_config))


def _point(candidate: Candidate, workload: Workload, start: SweepStart, *, reference: int) -> StepPoint:
    work = step_work(candidate, workload, _settings(candidate, workload, start))
    return StepPoint(candidate=candidate, work=deeper(work, reference, workload.world_size))


def _of_link(
    forecast: Forecast, points: Sequence[StepPoint], scale: Scale, probes: Sequence[Probe], measured: Workload
) -> Array:
    """What each step time is multiplied by, for bytes that go over the link named."""
    if scale.link_bytes_per_s is None:
        return np.ones(len(points))
    seconds = forecast.coefficients
    by_link = {
        name: _seconds_by_link(seconds[name], name, scale.link_bytes_per_s, probes, measured)
        for name in ("reduce_bytes", "gather_bytes")
    }
    factors = []
    for point in points:
        before_s = math.fsum(seconds[name] * getattr(point.work, name) for name in seconds)
        change_s = math.fsum((by_link[name] - seconds[name]) * getattr(point.work, name) for name in by_link)
        factors.append((before_s + change_s) / before_s)
    return np.array(factors)


def _seconds_by_link(
    fitted: float, name: str, link_bytes_per_s: float, probes: Sequence[Probe], measured: Workload
) -> float:
    """Seconds a byte over the link: what was hidden behind computation on the measured one stays hidden."""
    probes = [each for each in probes if each.all_reduce_s and each.all_gather_s]
    if not probes:
        return 1 / link_bytes_per_s
    share = (measured.world_size - 1) / measured.world_size
    sent_share = 2 * share if name == "reduce_bytes" else share
    bytes_s = [
        alpha_beta(each.all_reduce_s if name == "reduce_bytes" else each.all_gather_s)[1] / sent_share
        for each in probes
    ]
    met = statistics.median(bytes_s)
    return 1 / link_bytes_per_s if met <= 0 else min(fitted / met, 1.0) / link_bytes_per_s


def _memory(candidate: Candidate, workload: Workload, start: SweepStart) -> MemoryEstimate | None:
    if workload.shape is None:
        return None
    workload = workload.of(candidate)
    return estimate_memory(candidate, workload, _settings(candidate, workload, start))


def _fits(memory: MemoryEstimate | None, budget_bytes: int | None) -> bool | None:
    if memory is None or budget_bytes is None:
        return None
    return memory.peak_bytes <= budget_bytes
