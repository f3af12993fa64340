"""The rows of a plan and its memory predictions, kept as columns and made one by one when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np

from raysweep.candidate import Candidate
from raysweep.lanes import Piece, at, evaluate, lanes_of
from raysweep.memory import MemoryEstimate
from raysweep.space_families import Family
from raysweep.trial import PlanRow, SkipRule, TrialStatus

T = TypeVar("T", int, float)

BATCH_IN_ID = re.compile(r"-b(\d{1,18})-g(\d{1,18})")
"""Micro-batch and accumulation in a candidate's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a plan knows of a candidate, or of several as columns."""

    legal: bool
    estimate: MemoryEstimate | None
    sent_bytes: int | None
    status: TrialStatus | None
    """PRUNED or SKIPPED; None where the candidate is admitted."""
    skip_rule: SkipRule | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Members of a family of which the same is known but for the numbers."""

    family: Family
    piece: Piece[Known]

    @property
    def known(self) -> Known:
        return self.piece.result

    def __len__(self) -> int:
        return len(self.piece.members)

    def candidate(self, lane: int) -> Candidate:
        """The candidate with this place in the part."""
        return self.family.member(self.piece.members.item(lane))

    @property
    def largest_micro_batch(self) -> int:
        """Of its candidates."""
        return int(self.family.micro_batch_size_per_gpu[self.piece.members].max())

    def lanes_with(self, micro_batch: int, accumulation: int) -> list[int]:
        """The places of the candidates with a batch."""
        chosen, family = self.piece.members, self.family
        is_micro_batch = family.micro_batch_size_per_gpu[chosen] == micro_batch
        return np.flatnonzero(is_micro_batch & (family.gradient_accumulation_steps[chosen] == accumulation)).tolist()

    def lanes_of(self, number: Any) -> list[Any]:
        """A number of `known`, for each of the candidates."""
        return lanes_of(number, len(self))

    def numbers(self, function: Callable[[Candidate], T]) -> list[T]:
        """A number that a function has for each of the candidates; in no order that counts."""
        chosen, family = self.piece.members, self.family
        pieces = evaluate(
            lambda micro_batch, accumulation: function(family.candidate(micro_batch, accumulation)),
            family.micro_batch_size_per_gpu[chosen],
            family.gradient_accumulation_steps[chosen],
        )
        return [number for piece in pieces for number in lanes_of(piece.result, len(piece.members))]


Look = Callable[[Candidate, bool, MemoryEstimate | None], Known]
"""What is known of a candidate whose batch is legal or not, where an estimate of it is there already or None."""


def parts_of(families: Sequence[Family], look: Look, *, traced: Mapping[str, MemoryEstimate]) -> Iterator[Part]:
    """Look at every candidate, at those of a family together but for the traced ones.

    Args:
        families: of a space.
        look: called with columns in place of numbers (`raysweep.lanes.evaluate`).
        traced: candidate_id -> memory that is known before.
    """
    for family in families:
        columns = (family.micro_batch_size_per_gpu, family.gradient_accumulation_steps, family.legal)
        numbers = np.arange(len(family.places))
        if traced:
            estimates = [traced.get(family.member(number).candidate_id) for number in numbers.tolist()]
            for number, estimate in enumerate(estimates):
                if estimate is not None:
                    known = look(family.member(number), bool(family.legal[number]), estimate)
                    yield Part(family=family, piece=Piece(members=numbers[number : number + 1], result=known))
            numbers = numbers[[estimate is None for estimate in estimates]]
        for piece in evaluate(
            lambda micro_batch, accumulation, legal, family=family: look(
                family.candidate(micro_batch, accumulation), bool(legal == 1), None
            ),
            *(column[numbers] for column in columns),
        ):
            yield Part(family=family, piece=Piece(members=numbers[piece.members], result=piece.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanRows(Sequence[PlanRow]):
    """The rows of a plan in the order of the space."""

    parts: Sequence[Part]
    make_row: Callable[[Candidate, Known], PlanRow]
    _part_of: np.ndarray = field(init=False)
    _lane_of: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        count = sum(map(len, self.parts))
        part_of, lane_of = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
        for number, part in enumerate(self.parts):
            places = part.family.places[part.piece.members]
            part_of[places], lane_of[places] = number, np.arange(len(part))
        object.__setattr__(self, "_part_of", part_of)
        object.__setattr__(self, "_lane_of", lane_of)

    def __len__(self) -> int:
        return len(self._part_of)

    @overload
    def __getitem__(self, index: int) -> PlanRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[PlanRow]: ...

    def __getitem__(self, index: int | slice) -> PlanRow | list[PlanRow]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        part, lane = self.place(index)
        return self.make_row(part.candidate(lane), at(part.known, lane))

    def place(self, index: int) -> tuple[Part, int]:
        """The part of a row, and the place in it."""
        return self.parts[self._part_of.item(index)], self._lane_of.item(index)

    @property
    def admitted_count(self) -> int:
        """How many candidates may be launched."""
        return sum(len(part) for part in self.parts if part.known.status is None)

    def admitted(self) -> list[Candidate]:
        """The candidates that may be launched, in the order of the space."""
        is_admitted = np.array([part.known.status is None for part in self.parts])
        found = (self.place(index) for index in np.flatnonzero(is_admitted[self._part_of]).tolist())
        return [part.candidate(lane) for part, lane in found]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanEstimates(Mapping[str, MemoryEstimate]):
    """candidate_id -> predicted memory, of the rows that have one."""

    rows: PlanRows
    _parts_of: dict[str, list[Part]] = field(init=False, default_factory=dict)
    """Id less its batch -> the parts with an estimate."""

    def __post_init__(self) -> None:
        for part in self.rows.parts:
            if part.known.estimate is not None:
                family = BATCH_IN_ID.sub("", part.candidate(0).candidate_id)
                self._parts_of.setdefault(family, []).append(part)

    def __getitem__(self, candidate_id: str) -> MemoryEstimate:
        batch = BATCH_IN_ID.search(candidate_id)
        if batch is None:
            raise KeyError(candidate_id)
        for part in self._parts_of.get(BATCH_IN_ID.sub("", candidate_id), []):
            for lane in part.lanes_with(*map(int, batch.groups())):
                if part.candidate(lane).candidate_id == candidate_id:
                    estimate = at(part.known.estimate, lane)
                    assert estimate is not None, "these parts have one"
                    return estimate
        raise KeyError(candidate_id)

    def __len__(self) -> int:
        return sum(len(part) for parts in self._parts_of.values() for part in parts)

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self.rows)):
            part, lane = self.rows.place(index)
            if part.known.estimate is not None:
                yield part.candidate(lane).candidate_id
