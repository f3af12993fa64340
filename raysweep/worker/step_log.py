"""What the optimizer steps of a candidate showed, as all ranks agreed on each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from raysweep.errors import NumericsError
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
    """Whether it counts nowhere: loss-scale overflow skipped the update, or the data ended within the step."""
    data_s: float | None = None
    """Seconds that this rank took to get its batches; None where that is not seen."""
    nonpadding_tokens: int | None = None
    """Of this rank; None where its batches show neither a mask nor tokens, or are not seen."""


class StepLog:
    """Keeps what the losses of optimizer steps say, from the engine's first step on."""

    def __init__(self, *, gradient_accumulation_steps: int, rank: RankContext) -> None:
        self._gradient_accumulation_steps = gradient_accumulation_steps
        self._rank = rank
        self._skipped_in_a_row = 0
        self.losses: list[float] = []
        """Mean loss of this rank's micro-batches, for each step."""
        self.skipped_steps = 0
        self.random_forward = False
        """Whether the first step's forward passes drew random numbers."""

    @property
    def micro_steps(self) -> int:
        """Micro-steps taken so far."""
        return len(self.losses) * self._gradient_accumulation_steps

    def agree(
        self,
        *,
        time_s: float,
        cpu_time_s: float,
        loss: float,
        skipped: bool,
        is_partial: bool = False,
        data_s: float | None = None,
        nonpadding_tokens: int | None = None,
    ) -> Step:
        """Agree with the other ranks on a step that this rank has taken, and keep what it showed.

        `is_partial` marks a step of fewer samples than the others, because the data ended.

        Raises:
            NumericsError: on every rank, when a loss is not finite or too many steps in a row were skipped.
        """
        is_broken = not math.isfinite(loss)
        slowest_s, any_skipped, any_partial, broken = self._rank.largest(
            [time_s, float(skipped), float(is_partial), 1.0 + self._rank.rank if is_broken else 0.0]
        )
        self._note(loss, skipped=bool(any_skipped), broken_rank=int(broken) - 1 if broken else None)
        is_skipped = bool(any_skipped or any_partial)
        return Step(
            time_s=slowest_s,
            cpu_time_s=cpu_time_s,
            skipped=is_skipped,
            data_s=data_s,
            nonpadding_tokens=nonpadding_tokens,
        )

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


def random_state(place: torch.device) -> bytes:
    """The state of the generators that a forward pass may draw from."""
    states = [torch.get_rng_state()]
    if place.type == "cuda":
        states.append(torch.cuda.get_rng_state(place))
    return b"".join(bytes(state.tolist()) for state in states)
