"""The candidates of a space in families, whose members differ in the batch alone, as columns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysweep.candidate import Candidate
from raysweep.lanes import evaluate
from raysweep.space import SearchSpace
from raysweep.wide import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Candidates of one stage, interval and set of further axes. Its columns have an entry for each member."""

    zero_stage: int
    activation_checkpoint_interval: int
    deepspeed: Mapping[str, Any]
    micro_batch_size_per_gpu: Column
    gradient_accumulation_steps: Column
    legal: Column
    """1 where the batch is legal, else 0."""
    places: Column
    """Where a member stands in the order of the space, from 0."""

    def candidate(self, micro_batch: int, accumulation: int) -> Candidate:
        """The member with this batch; with columns as numbers (`raysweep.wide`), all of them."""
        return Candidate(
            zero_stage=self.zero_stage,
            activation_checkpoint_interval=self.activation_checkpoint_interval,
            micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=accumulation,
            deepspeed=self.deepspeed,
        )

    def member(self, number: int) -> Candidate:
        """The member with this number in the columns."""
        return self.candidate(self.micro_batch_size_per_gpu.item(number), self.gradient_accumulation_steps.item(number))


def families(space: SearchSpace, *, global_batch_size: int | None, world_size: int) -> list[Family]:
    """The families of a space; together their members are `SearchSpace.candidates`.

    Raises:
        ConfigError: for a constraint that cannot be evaluated.
    """
    batches = [
        (micro_batch, accumulation or 1, accumulation is not None)
        for micro_batch in space.micro_batch_size_per_gpu
        for accumulation in space.accumulations(micro_batch, global_batch_size=global_batch_size, world_size=world_size)
    ]
    micro_batches, steps, legal = (np.array(column, dtype=np.int64) for column in zip(*batches, strict=True))
    # In the order of the space a micro-batch has all further axes behind it, and each of those all accumulations.
    width = len(batches) // len(space.micro_batch_size_per_gpu)
    turns, place_of_turn = np.divmod(np.arange(len(batches)), width)
    found: list[Family] = []
    before = 0
    for stage, interval in itertools.product(space.zero_stage, space.activation_checkpoint_interval):
        further = space.further_choices(stage)
        for number, deepspeed in enumerate(further):
            family = Family(
                zero_stage=stage,
                activation_checkpoint_interval=interval,
                deepspeed=deepspeed,
                micro_batch_size_per_gpu=micro_batches,
                gradient_accumulation_steps=steps,
                legal=legal,
                places=before + (turns * len(further) + number) * width + place_of_turn,
            )
            found.append(family)
        before += len(further) * len(batches)
    if not space.constraints:
        return found
    return _renumbered([_keeping(each, space, global_batch_size, world_size) for each in found], before)


def _keeping(family: Family, space: SearchSpace, global_batch_size: int | None, world_size: int) -> Family:
    """The members that keep the constraints."""

    def keeps(micro_batch: int, accumulation: int) -> bool:
        candidate = family.candidate(micro_batch, accumulation)
        return space.keeps(candidate, global_batch_size=global_batch_size, world_size=world_size)

    chosen = np.zeros(len(family.places), dtype=bool)
    for piece in evaluate(keeps, family.micro_batch_size_per_gpu, family.gradient_accumulation_steps):
        chosen[piece.members] = piece.result
    return replace(
        family,
        micro_batch_size_per_gpu=family.micro_batch_size_per_gpu[chosen],
        gradient_accumulation_steps=family.gradient_accumulation_steps[chosen],
        legal=family.legal[chosen],
        places=family.places[chosen],
    )


def _renumbered(found: list[Family], most: int) -> list[Family]:
    """Families with members, their places without gaps."""
    is_taken = np.zeros(most, dtype=bool)
    for family in found:
        is_taken[family.places] = True
    ranks = np.cumsum(is_taken) - 1
    return [replace(family, places=ranks[family.places]) for family in found if len(family.places)]
