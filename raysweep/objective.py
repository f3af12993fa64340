"""What the best candidate is: the fastest, the cheapest a sample, or the leanest that is fast enough."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SECONDS_PER_HOUR = 3600


class Goal(StrEnum):
    """What is made as large, or for `peak_memory` as small, as it can be."""

    SAMPLES_PER_S = "samples_per_s"
    NONPADDING_TOKENS_PER_S = "nonpadding_tokens_per_s"
    """Padding is work that trains nothing: two ways to batch the same samples differ in how much of it they do."""
    SAMPLES_PER_CURRENCY_UNIT = "samples_per_currency_unit"
    PEAK_MEMORY = "peak_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The goal of a sweep, with what it needs to know. A candidate that does not fit in memory never wins."""

    goal: Goal = Goal.SAMPLES_PER_S
    price_per_worker_hour: float | None = None
    """For samples_per_currency_unit."""
    currency: str | None = None
    at_least_samples_per_s: float | None = None
    """For peak_memory: slower candidates cannot win."""

    @property
    def is_memory(self) -> bool:
        """Whether less memory is better, and speed only has to suffice."""
        return self.goal is Goal.PEAK_MEMORY

    @property
    def unit(self) -> str:
        """Of `value`, for people."""
        return {
            Goal.SAMPLES_PER_S: "samples/s",
            Goal.NONPADDING_TOKENS_PER_S: "tokens/s without padding",
            Goal.SAMPLES_PER_CURRENCY_UNIT: f"samples per {self.currency or 'unit of money'}",
            Goal.PEAK_MEMORY: f"bytes at {self.at_least_samples_per_s} samples/s or more",
        }[self.goal]

    def sample_value(self, *, world_size: int, tokens_per_sample: float) -> float:
        """What one sample/s counts for: rates of candidates compare as rate x this.

        Samples per unit of money = samples/s x 3600 / (price a worker-hour x workers).
        """
        if self.goal is Goal.NONPADDING_TOKENS_PER_S:
            return tokens_per_sample
        if self.goal is Goal.SAMPLES_PER_CURRENCY_UNIT:
            assert self.price_per_worker_hour, "checked where the sweep file is read"
            return SECONDS_PER_HOUR / (self.price_per_worker_hour * world_size)
        return 1.0
