"""How the global batch moves with the number of workers, and what that asks of the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysweep.workload import accumulation_for


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMove:
    """One micro-batch and accumulation, on the workers that were measured and on those that it is exported for."""

    micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    measured_world_size: int
    world_size: int
    learning_rate: float | None
    """As measured; None where the optimizer section has none."""

    @property
    def measured_global_batch_size(self) -> int:
        """Samples in an optimizer step, as measured."""
        return self._global_batch_size(self.measured_world_size)

    @property
    def global_batch_size(self) -> int:
        """Samples in an optimizer step, as exported."""
        return self._global_batch_size(self.world_size)

    @property
    def ratio(self) -> float:
        """Exported over measured global batch."""
        return self.world_size / self.measured_world_size

    @property
    def accumulation_that_keeps_it(self) -> int | None:
        """Accumulation with which the global batch stays as measured; None where there is none."""
        return accumulation_for(self.measured_global_batch_size, self.micro_batch_size_per_gpu, self.world_size)

    @property
    def learning_rate_linear(self) -> float | None:
        """lr x ratio: Goyal et al., arXiv:1706.02677, found with SGD."""
        return None if self.learning_rate is None else self.learning_rate * self.ratio

    @property
    def learning_rate_square_root(self) -> float | None:
        """lr x sqrt(ratio): Malladi et al., arXiv:2205.10343, derived for Adam."""
        return None if self.learning_rate is None else self.learning_rate * math.sqrt(self.ratio)

    def sentences(self) -> list[str]:
        """What a person needs to know of it; one sentence where the workers are those that were measured."""
        if self.world_size == self.measured_world_size:
            return [f"The global batch is {self.global_batch_size} samples on {self.world_size} workers, as measured."]
        moved = (
            f"Exported for {self.world_size} workers and measured on {self.measured_world_size}: no figure is claimed "
            f"for {self.world_size}. Micro-batch and accumulation stay, so the global batch moves from "
            f"{self.measured_global_batch_size} to {self.global_batch_size} samples."
        )
        return [moved, self._keeping_it(), self._learning_rates()]

    def _global_batch_size(self, world_size: int) -> int:
        return self.micro_batch_size_per_gpu * self.gradient_accumulation_steps * world_size

    def _keeping_it(self) -> str:
        accumulation = self.accumulation_that_keeps_it
        if accumulation is None:
            return (
                f"No accumulation keeps {self.measured_global_batch_size} samples with this micro-batch on "
                f"{self.world_size} workers."
            )
        return (
            f"gradient_accumulation_steps {accumulation} would keep {self.measured_global_batch_size} samples; "
            "it has not been measured."
        )

    def _learning_rates(self) -> str:
        if self.learning_rate is None:
            return "A global batch that moves may ask for another learning rate."
        return (
            f"Rules of thumb for the learning rate, which was {self.learning_rate:g}: "
            f"linear {self.learning_rate_linear:g} (Goyal et al. 2017, for SGD), "
            f"square root {self.learning_rate_square_root:g} (Malladi et al. 2022, for Adam). "
            "Neither replaces a trial of the training itself."
        )
