"""Calls a function once for a column of numbers in place of once for each, with the same results to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from raysweep.wide import Column, Mask, Run, Wide, wide

T = TypeVar("T")

FEWEST_LANES = 4
"""One call for a column takes about as long as so many plain ones."""
MOST_RUNS = 256
"""Calls for the columns of one `evaluate`; what then is still left is called one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(Generic[T]):
    """Members of the columns for which a function takes the same branches, and what it gives for them."""

    members: Column
    """Positions in the columns, ascending."""
    result: T
    """Holds a `Wide` in place of a number that differs between members, with a lane for each, in their order."""


def evaluate(function: Callable[..., T], *columns: Column) -> Iterator[Piece[T]]:
    """What a function gives for each member of the columns, in as few calls as it has branches that are taken.

    The function is called with a `Wide` for each column. Where it compares, one member decides the branch, and
    those that would take the other one are put aside for a later call. So nothing has to be known of the formula, and
    a member's result is what a call with its own numbers gives. A function that does what a `Wide` cannot do is
    called for each member.

    Args:
        function: of as many integers as there are columns; without side effects. Its result may be a number, or hold
            numbers in dataclasses, mappings and tuples.
        columns: of equal length.

    Raises:
        Exception: what the function raises for a member.
    """
    left = np.arange(len(columns[0]))
    for _ in range(min(MOST_RUNS, len(left) // FEWEST_LANES)):
        if len(left) < FEWEST_LANES:
            break
        # A lane in the middle is likelier to be one of many than the first, which is often an exception.
        run = Run(lead=len(left) // 2, agrees=np.ones(len(left), dtype=bool))
        try:
            result = function(*(wide(column[left], run) for column in columns))
        except Exception:  # whatever it is: called with plain numbers, the function works, or raises it in earnest
            break
        yield Piece(members=left[run.agrees], result=_lanes(result, run.agrees))
        left = left[~run.agrees]
    for member in left:
        numbers = (int(column[member]) for column in columns)
        yield Piece(members=np.array([member]), result=function(*numbers))


def at(result: T, lane: int) -> T:
    """The result for one lane, with plain numbers."""
    plain: T = _mapped(result, lambda number: number.values.item(lane))
    return plain


def lanes_of(number: Any, count: int) -> list[Any]:
    """A number of a result as a plain one for each of `count` lanes."""
    return list(number.values.tolist()) if isinstance(number, Wide) else [number] * count


def _lanes(result: T, chosen: Mask) -> T:
    """The result for the chosen lanes only."""
    if chosen.all():
        return result
    fewer: T = _mapped(result, lambda number: Wide(number.values[chosen], number.run, number.most))
    return fewer


def _mapped(value: Any, change: Callable[[Wide], Any]) -> Any:
    """The value with each `Wide` in it changed."""
    if isinstance(value, Wide):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(each, change) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        now = {each.name: getattr(value, each.name) for each in fields(value)}
        changed = {name: _mapped(each, change) for name, each in now.items()}
        differing = {name: each for name, each in changed.items() if each is not now[name]}
        return replace(value, **differing) if differing else value
    return value
