"""How many bytes a worker may use, how long the search may last, and how long a candidate is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

DEVICE_MARGIN = 0.05
"""Share of a device left unused when the budget is `auto`: allocator rounding and the step that differs."""

CONFIRM_ROUNDS = 3
"""Fresh worker groups in which a finalist must complete before it may be called best."""

CONFIRM_WINDOW_FACTOR = 2
"""How much longer than in the search a finalist is measured: what fails late, or slows down, has to show."""

GUIDED_TRIALS = 12
"""Most candidates that a guided search launches where the file sets no limit; its model ends most searches before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBudget:
    """Most that a search may spend; None is no limit. Whichever comes first ends it."""

    trials: int | None = None
    seconds: float | None = None
    worker_hours: float | None = None

    def seconds_allowed(self, world_size: int) -> float | None:
        """The time limit in seconds: the smaller of `seconds` and `worker_hours` shared by the workers."""
        limits = [self.seconds, None if self.worker_hours is None else self.worker_hours * 3600 / world_size]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWindow:
    """When a candidate has warmed up, and how much of it is timed (all in optimizer steps).

    Warm-up ends when the last `settle_steps` differ by at most `settle_tolerance` (largest over smallest, less 1),
    after at least `warmup_min_steps` and at most `warmup_max_steps`. Then at least `measured_steps` steps and at
    least `measured_s` seconds are timed, whichever takes longer.
    """

    warmup_min_steps: int = 3
    warmup_max_steps: int = 10
    settle_steps: int = 3
    settle_tolerance: float = 0.05
    measured_steps: int = 8
    measured_s: float = 3.0
    memory_pass_steps: int = 3
    """Steps of the untimed memory pass. The first creates the optimizer's state, so its peak is lower."""

    def times(self, factor: int) -> MeasurementWindow:
        """The same with a timed part so many times as long."""
        return replace(self, measured_steps=factor * self.measured_steps, measured_s=factor * self.measured_s)
