"""What one launch showed: a report a rank, reduced to the figures of the candidate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from raysweep.workload import Workload

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank saw of one launch that ran to its end."""

    rank: int
    node: str
    pid: int
    device: str
    step_times_s: tuple[float, ...]
    """Timed optimizer steps, in order, skipped ones left out; each already the slowest rank's time."""
    warmup_steps: int
    skipped_steps: int
    """Steps that loss-scale overflow skipped, in warm-up and window."""
    cpu_time_s: float
    """Process CPU time inside the window."""
    first_loss: float
    """Mean loss of this rank's micro-batches in the engine's first step, before any update."""
    loss_at_step_5: float | None
    peak_memory_bytes: int
    """Highest of the steady steps: live tensor bytes (CPU) or allocated bytes (CUDA)."""
    build_peak_bytes: int
    resting_bytes: int
    """Held between two steps."""
    peak_phase: str
    """forward, backward or step: where the peak of the steady steps came."""
    recomputed_blocks: int
    """Blocks recomputed in one micro-step."""
    build_s: float
    left_behind_bytes: int
    """Tensor bytes alive after the candidate was torn down, above what the group held before it."""
    reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    allocation_retries: int = 0
    foreign_bytes: int = 0
    """Device memory that somebody else held when the candidate started."""
    cycled_data: bool = False
    """The rank ran out of batches and began again."""
    random_forward: bool = False
    """The forward pass draws random numbers, as dropout does: the loss then depends on how a batch is split."""
    window_end: str = ""
    """Why the timed window ended (`raysweep.race.WindowEnd`)."""
    nonpadding_tokens: int | None = None
    """Tokens of the timed window's batches that an attention mask does not hide; None where a batch has no mask."""
    data_s: float | None = None
    """Seconds of a timed step that went into getting batches, on average; None where a loop of the user's gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The reduced figures of one launch: slowest rank's time, fullest rank's memory, mean loss, summed CPU time."""

    samples_per_s: float
    tokens_per_s: float
    step_time_s_median: float
    step_time_s_iqr: float
    step_times_s: tuple[float, ...]
    measured_steps: int
    warmup_steps: int
    skipped_steps: int
    cpu_time_s: float
    first_loss: float
    loss_at_step_5: float | None
    peak_memory_bytes: int
    build_peak_bytes: int
    resting_bytes: int
    peak_phase: str
    peak_rank: int
    peak_node: str
    recomputed_blocks: int
    build_s: float
    left_behind_bytes: int
    reserved_bytes: int | None
    device_used_bytes: int | None
    memory_pressure: bool
    cycled_data: bool
    device: str
    nodes: tuple[str, ...]
    worker_pids: tuple[int, ...]
    random_forward: bool = False
    window_end: str = ""
    nonpadding_tokens_per_s: float | None = None
    """None in records of a version that did not count them."""
    data_s: float | None = None
    """The slowest rank's."""


def reduce_reports(reports: Sequence[RankReport], *, workload: Workload, global_batch_size: int) -> Figures:
    """Reduce one report a rank to the candidate's figures.

    samples_per_s = global batch / median step time (seconds of the slowest rank).
    """
    ordered = sorted(reports, key=lambda report: report.rank)
    assert [report.rank for report in ordered] == list(range(workload.world_size)), "one report a rank"
    fullest = max(ordered, key=lambda report: report.peak_memory_bytes)
    first = ordered[0]
    step_time_s = statistics.median(first.step_times_s)
    return Figures(
        samples_per_s=global_batch_size / step_time_s,
        tokens_per_s=global_batch_size * workload.tokens_per_sample / step_time_s,
        step_time_s_median=step_time_s,
        step_time_s_iqr=interquartile_range(first.step_times_s),
        step_times_s=first.step_times_s,
        measured_steps=len(first.step_times_s),
        warmup_steps=first.warmup_steps,
        skipped_steps=max(report.skipped_steps for report in ordered),
        cpu_time_s=sum(report.cpu_time_s for report in ordered),
        first_loss=_mean([report.first_loss for report in ordered]),
        loss_at_step_5=_mean_or_none([report.loss_at_step_5 for report in ordered]),
        peak_memory_bytes=fullest.peak_memory_bytes,
        build_peak_bytes=max(report.build_peak_bytes for report in ordered),
        resting_bytes=max(report.resting_bytes for report in ordered),
        peak_phase=fullest.peak_phase,
        peak_rank=fullest.rank,
        peak_node=fullest.node,
        recomputed_blocks=max(report.recomputed_blocks for report in ordered),
        build_s=max(report.build_s for report in ordered),
        left_behind_bytes=max(report.left_behind_bytes for report in ordered),
        reserved_bytes=_max_or_none([report.reserved_bytes for report in ordered]),
        device_used_bytes=_max_or_none([report.device_used_bytes for report in ordered]),
        memory_pressure=any(report.allocation_retries > 0 for report in ordered),
        cycled_data=any(report.cycled_data for report in ordered),
        device=first.device,
        nodes=tuple(report.node for report in ordered),
        worker_pids=tuple(report.pid for report in ordered),
        random_forward=any(report.random_forward for report in ordered),
        window_end=first.window_end,
        nonpadding_tokens_per_s=_nonpadding_tokens(ordered, workload, global_batch_size) / step_time_s,
        data_s=_max_or_none([report.data_s for report in ordered]),
    )


def _nonpadding_tokens(reports: Sequence[RankReport], workload: Workload, global_batch_size: int) -> float:
    """Mean tokens of a step that are no padding; without a mask no token is."""
    counted = [report.nonpadding_tokens for report in reports if report.nonpadding_tokens is not None]
    if len(counted) < len(reports):
        return float(global_batch_size * workload.tokens_per_sample)
    return sum(counted) / len(reports[0].step_times_s)


def interquartile_range(values: Sequence[float]) -> float:
    """Third less first quartile; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    return quartiles[2] - quartiles[0]


def median_log_error(*, median: float, iqr: float, count: int) -> float:
    """Standard error of the logarithm of a median of `count` values.

    For normal values sigma = IQR / 1.349, and the standard error of a median is sqrt(pi / 2) sigma / sqrt(count).
    """
    return math.sqrt(math.pi / 2) * iqr / 1.349 / median / math.sqrt(count)


def has_settled(step_times_s: Sequence[float], *, last: int, tolerance: float) -> bool:
    """Whether the last `last` steps lie within `tolerance` of each other (largest / smallest - 1)."""
    recent = step_times_s[-last:]
    return len(recent) == last and max(recent) <= min(recent) * (1 + tolerance)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(known) if len(known) == len(values) and known else None


def _max_or_none(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
