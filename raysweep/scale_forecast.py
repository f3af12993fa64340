"""What a sweep's candidates are predicted to do with more workers than it had: a line for each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEADINGS = ("workers", "fastest, predicted", "samples/s, predicted", "band (two standard deviations)", "efficiency")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePrediction:
    """The candidate that is predicted to be fastest with one number of workers. Nothing of it was measured."""

    world_size: int
    candidate_id: str = ""
    """Empty where none is predicted: `reason` says why."""
    samples_per_s: float = 0.0
    samples_per_s_low: float = 0.0
    samples_per_s_high: float = 0.0
    """Two standard deviations below and above."""
    efficiency: float = 0.0
    """Samples/s a worker, over those of the fastest measured candidate with the most workers of the sweep."""
    reason: str = ""

    def cells(self) -> tuple[str, ...]:
        """In the order of the headings."""
        if not self.candidate_id:
            return (str(self.world_size), self.reason, "", "", "")
        return (
            str(self.world_size),
            self.candidate_id,
            f"{self.samples_per_s:.2f}",
            f"{self.samples_per_s_low:.2f} to {self.samples_per_s_high:.2f}",
            f"{self.efficiency:.0%}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleForecast:
    """The predictions of one sweep, and what they come from."""

    measured_world_size: int
    """The most workers of the sweep."""
    fitted_to: int
    """Measured candidates that the model was fitted to."""
    predictions: Sequence[ScalePrediction]

    def told(self) -> str:
        """Where the predictions come from, and what they take for granted."""
        return (
            f"A prediction. Nothing was run with these numbers of workers: the step-time model, fitted to "
            f"{self.fitted_to} measured candidates, says so, as raysweep predict does. It takes links to be as fast as "
            f"between the sweep's own workers, and sees nothing that only a large cluster shows. Efficiency: samples/s "
            f"a worker, over the fastest measured with {self.measured_world_size}."
        )
