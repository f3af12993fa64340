"""The candidates of a space in families of one program, stage and interval, as columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysweep.candidate import Candidate
from raysweep.lanes import evaluate
from raysweep.space import Program, SearchSpace
from raysweep.wide import Column, Mask


class _Unsettled(Mapping[str, Any]):
    """The further axes of several candidates at once: whoever asks for them is to be called for each candidate."""

    def __getitem__(self, key: str) -> Any:
        raise TypeError("differs between the candidates")

    def __iter__(self) -> Iterator[str]:
        raise TypeError("differs between the candidates")

    def __len__(self) -> int:
        raise TypeError("differs between the candidates")


UNSETTLED = _Unsettled()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Candidates of one program, stage and interval. Its columns have an entry for each member."""

    program: Program
    zero_stage: int
    activation_checkpoint_interval: int
    further: Sequence[Mapping[str, Any]]
    """Values of the further axes, one set after the other."""
    micro_batch_size_per_gpu: Column
    gradient_accumulation_steps: Column
    choice: Column
    """Which of `further` a member has."""
    legal: Column
    """1 where the batch is legal, else 0."""
    places: Column
    """Where a member stands in the order of the space, from 0."""

    def candidate(self, micro_batch: int, accumulation: int, choice: int) -> Candidate:
        """A member, or several where the numbers are columns (`raysweep.wide`)."""
        return Candidate(
            zero_stage=self.zero_stage,
            activation_checkpoint_interval=self.activation_checkpoint_interval,
            micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=accumulation,
            deepspeed=self.further[choice] if isinstance(choice, int) else UNSETTLED,
            attn_implementation=self.program.attn_implementation,
            torch_compile=self.program.torch_compile,
            world_size=self.program.world_size,
        )

    def member(self, number: int) -> Candidate:
        """The member with this number in the columns."""
        return self.candidate(
            self.micro_batch_size_per_gpu.item(number),
            self.gradient_accumulation_steps.item(number),
            self.choice.item(number),
        )

    def one_of_each_choice(self) -> list[Candidate]:
        """A member for each set of values of the further axes."""
        return [self.member(number) for number in np.unique(self.choice, return_index=True)[1].tolist()]

    def only(self, chosen: Mask) -> Family:
        """The same with fewer members."""
        return replace(
            self,
            micro_batch_size_per_gpu=self.micro_batch_size_per_gpu[chosen],
            gradient_accumulation_steps=self.gradient_accumulation_steps[chosen],
            choice=self.choice[chosen],
            legal=self.legal[chosen],
            places=self.places[chosen],
        )


def families(space: SearchSpace, *, global_batch_size: int | None, world_size: int) -> list[Family]:
    """The families of a space; together their members are `SearchSpace.candidates`.

    Raises:
        ConfigError: for a constraint that cannot be evaluated.
    """
    found: list[Family] = []
    before = 0
    for program in space.programs(world_size):
        made = _of_program(space, program, global_batch_size, program.world_size or world_size, before=before)
        before += sum(len(family.places) for family in made)
        found += made
    if space.constraints:
        found = _renumbered([_keeping(each, space, global_batch_size, world_size) for each in found], before)
    return [family for family in found if len(family.places)]


def _of_program(
    space: SearchSpace, program: Program, global_batch_size: int | None, world_size: int, *, before: int
) -> list[Family]:
    """The families of a program before the constraints, of which its `world_size` workers decide the batches.

    Args:
        space: that it is one of.
        program: its candidates' attention, compilation and number of workers.
        global_batch_size: None where it is free.
        world_size: workers that train one of its candidates.
        before: candidates of the space that come before them.
    """
    batches = [
        (micro_batch, accumulation or 1, accumulation is not None)
        for micro_batch in space.micro_batch_size_per_gpu
        for accumulation in space.accumulations(micro_batch, global_batch_size=global_batch_size, world_size=world_size)
    ]
    by_stage = {stage: space.further_choices(stage, program, world_size=world_size) for stage in space.zero_stage}
    # In the order of the space a micro-batch has all further axes behind it, and each of those all accumulations.
    columns = {
        width: _columns(batches, width, micro_batches=len(space.micro_batch_size_per_gpu))
        for width in map(len, by_stage.values())
    }
    found = []
    for stage, interval in itertools.product(space.zero_stage, space.activation_checkpoint_interval):
        micro_batch, accumulation, legal, choice = columns[len(by_stage[stage])]
        family = Family(
            program=program,
            zero_stage=stage,
            activation_checkpoint_interval=interval,
            further=by_stage[stage],
            micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=accumulation,
            choice=choice,
            legal=legal,
            places=np.arange(before, before + len(choice)),
        )
        before += len(choice)
        found.append(family)
    return found


def _columns(batches: Sequence[tuple[int, int, bool]], width: int, *, micro_batches: int) -> list[Column]:
    """Micro-batch, accumulation, whether they are legal, and the choice of `width`, of each member."""
    shape = (micro_batches, width, len(batches) // micro_batches)
    table = np.array(batches, dtype=np.int64).reshape(shape[0], 1, shape[2], 3)
    choices = np.arange(width).reshape(1, width, 1)
    spread = [*(table[..., number] for number in range(3)), choices]
    return [np.broadcast_to(each, shape).ravel() for each in spread]


def _keeping(family: Family, space: SearchSpace, global_batch_size: int | None, world_size: int) -> Family:
    """The members that keep the constraints."""

    def keeps(micro_batch: int, accumulation: int) -> bool:
        candidate = family.candidate(micro_batch, accumulation, choice)
        return space.keeps(candidate, global_batch_size=global_batch_size, world_size=world_size)

    kept = np.zeros(len(family.places), dtype=bool)
    for choice in range(len(family.further)):
        members = np.flatnonzero(family.choice == choice)
        columns = (family.micro_batch_size_per_gpu[members], family.gradient_accumulation_steps[members])
        for piece in evaluate(keeps, *columns):
            kept[members[piece.members]] = piece.result
    return family.only(kept)


def _renumbered(found: Sequence[Family], most: int) -> list[Family]:
    """The families with places that have no gaps."""
    is_taken = np.zeros(most, dtype=bool)
    for family in found:
        is_taken[family.places] = True
    ranks = np.cumsum(is_taken) - 1
    return [replace(family, places=ranks[family.places]) for family in found]
