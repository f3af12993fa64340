"""The rows of a plan and its memory predictions, kept as columns and made one by one when they are asked for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, overload

import numpy as np

from raysweep.candidate import Candidate
from raysweep.lanes import Piece, at, evaluate, lanes_of
from raysweep.memory import MemoryEstimate, ZeroSettings
from raysweep.space import Program
from raysweep.space_families import Family
from raysweep.trial import PlanRow, SkipRule, TrialStatus
from raysweep.wide import MOST_INT64, Column

T = TypeVar("T", int, float)


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

    @property
    def choices(self) -> list[int]:
        """The sets of further axes of its candidates, as numbers of the family."""
        return [int(each) for each in np.unique(self.family.choice[self.piece.members])]

    def lanes_with(self, micro_batch: int, accumulation: int, choice: int) -> list[int]:
        """The places of the candidates with a batch and a set of further axes."""
        chosen, family = self.piece.members, self.family
        is_it = family.micro_batch_size_per_gpu[chosen] == micro_batch
        is_it &= family.gradient_accumulation_steps[chosen] == accumulation
        is_it &= family.choice[chosen] == choice
        return [int(each) for each in np.flatnonzero(is_it)]

    def lanes_of(self, number: Any) -> list[Any]:
        """A number of `known`, for each of the candidates."""
        return lanes_of(number, len(self))

    def numbers(self, function: Callable[[Candidate], T]) -> list[T]:
        """A number that a function has for each of the candidates; in no order that counts."""
        chosen, family = self.piece.members, self.family
        columns = (family.micro_batch_size_per_gpu, family.gradient_accumulation_steps, family.choice)
        pieces = evaluate(lambda *batch: function(family.candidate(*batch)), *(column[chosen] for column in columns))
        return [number for piece in pieces for number in lanes_of(piece.result, len(piece.members))]


Look = Callable[[Candidate, ZeroSettings, bool, MemoryEstimate | None], Known]
"""What is known of a candidate with its settings, its batch legal or not, and an estimate if there is one already."""


def parts_of(
    family: Family, settings: Sequence[ZeroSettings], look: Look, *, traced: Mapping[str, MemoryEstimate]
) -> Iterator[Part]:
    """Look at every member of a family, at all together but for the traced ones.

    Args:
        family: of a space.
        settings: for each of the family's sets of further axes.
        look: called with columns in place of numbers (`raysweep.lanes.evaluate`).
        traced: candidate_id -> memory that is known before.
    """
    numbers = np.arange(len(family.places))
    if traced:
        estimates = [traced.get(family.member(number).candidate_id) for number in numbers.tolist()]
        for number, estimate in enumerate(estimates):
            if estimate is not None:
                candidate, its_settings = family.member(number), settings[family.choice[number]]
                known = look(candidate, its_settings, bool(family.legal[number]), estimate)
                yield Part(family=family, piece=Piece(members=numbers[number : number + 1], result=known))
        numbers = numbers[[estimate is None for estimate in estimates]]
    for choices in _alike(settings):
        members = numbers[np.isin(family.choice[numbers], choices)]
        for piece in _looked_at(family, members, [settings[each] for each in choices], choices, look):
            yield Part(family=family, piece=Piece(members=members[piece.members], result=piece.result))


def _alike(settings: Sequence[ZeroSettings]) -> list[list[int]]:
    """Those whose settings differ in whole numbers alone, which can be columns."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, each in enumerate(settings):
        values = (getattr(each, name.name) for name in fields(each))
        found[tuple("" if _fits_a_column(value) else repr(value) for value in values)].append(number)
    return list(found.values())


def _fits_a_column(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_INT64


def _looked_at(
    family: Family, members: Column, settings: Sequence[ZeroSettings], choices: Sequence[int], look: Look
) -> Iterator[Piece[Known]]:
    """Look at members whose settings are alike.

    Args:
        family: theirs.
        members: numbers in the family.
        settings: of each of their sets of further axes.
        choices: the numbers of those sets, ascending.
        look: of a candidate.
    """
    first = settings[0]
    names = [
        each.name
        for each in fields(first)
        if any(getattr(other, each.name) != getattr(first, each.name) for other in settings)
    ]
    place = np.searchsorted(choices, family.choice[members])
    varied = [np.array([getattr(each, name) for each in settings], dtype=np.int64)[place] for name in names]

    def known(micro_batch: int, accumulation: int, choice: int, legal: int, *values: int) -> Known:
        sizes: dict[str, Any] = dict(zip(names, values, strict=True))
        own = replace(first, **sizes)
        return look(family.candidate(micro_batch, accumulation, choice), own, bool(legal == 1), None)

    columns = (family.micro_batch_size_per_gpu, family.gradient_accumulation_steps, family.choice, family.legal)
    return evaluate(known, *(column[members] for column in columns), *varied)


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
    _parts_of: dict[str, dict[Program, list[Part]]] = field(init=False, default_factory=dict)
    """Stage and interval as an id has them -> program -> the parts with an estimate."""
    _choices_of: dict[str, dict[str, list[tuple[Program, int]]]] = field(init=False, default_factory=dict)
    """The first -> end of an id -> program and number of a set of further axes; of stages that were asked for."""

    def __post_init__(self) -> None:
        for part in self.rows.parts:
            if part.known.estimate is not None:
                found = self._parts_of.setdefault(_split(part.candidate(0).candidate_id)[0], defaultdict(list))
                found[part.family.program].append(part)

    def __getitem__(self, candidate_id: str) -> MemoryEstimate:
        stage, micro_batch, accumulation, ending = _split(candidate_id)
        if stage not in self._parts_of:
            raise KeyError(candidate_id)
        for program, choice in self._choices(stage).get(ending, []):
            for part in self._parts_of[stage][program]:
                for lane in part.lanes_with(micro_batch, accumulation, choice):
                    estimate = at(part.known.estimate, lane)
                    # Another spelling of the numbers is another id.
                    if estimate is not None and part.candidate(lane).candidate_id == candidate_id:
                        return estimate
        raise KeyError(candidate_id)

    def _choices(self, stage: str) -> dict[str, list[tuple[Program, int]]]:
        if stage not in self._choices_of:
            found: dict[str, list[tuple[Program, int]]] = defaultdict(list)
            for program, parts in self._parts_of[stage].items():
                members = parts[0].family
                for choice in range(len(members.further)):
                    found[_split(members.candidate(1, 1, choice).candidate_id)[3]].append((program, choice))
            self._choices_of[stage] = found
        return self._choices_of[stage]

    def __len__(self) -> int:
        return sum(len(part) for each in self._parts_of.values() for parts in each.values() for part in parts)

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self.rows)):
            part, lane = self.rows.place(index)
            if part.known.estimate is not None:
                yield part.candidate(lane).candidate_id


def _split(candidate_id: str) -> tuple[str, int, int, str]:
    """Stage and interval, micro-batch, accumulation, and what follows; zeros where it is no id."""
    found = re.fullmatch(r"(s\d-k\d+)-b(\d{1,18})-g(\d{1,18})(.*)", candidate_id)
    return (found[1], int(found[2]), int(found[3]), found[4]) if found else ("", 0, 0, "")
