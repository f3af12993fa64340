"""A number with a value for each of many lanes, computed with as with Python's own; one lane decides branches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]

MOST_INT64 = 2**62
"""Below it a sum of two fits into 64 bits; larger integers are kept as Python's."""
MOST_EXACT_FLOAT = 2**53
"""Up to it every integer is a float of 64 bits, so that to convert it changes neither a comparison nor a quotient."""


@dataclass(slots=True)
class Run:
    """One call of a function for all lanes: one of them leads."""

    lead: int
    agrees: Mask
    """Lanes that so far take the branches that the leading one takes."""

    def decide(self, truth: NDArray[Any]) -> bool:
        """The leading lane's answer; lanes with another one drop out."""
        truth = truth.astype(bool, copy=False)
        leading = bool(truth[self.lead])
        self.agrees &= truth if leading else ~truth
        return leading


class Wide:
    """A number with a value for each lane, which is computed with as with Python's own.

    Integers are exact: they become Python's before 64 bits overflow. Floats are rounded as Python's, each operation on
    its own. What it does not have (text, `int()`, `range`, a hash, a floor of floats) is a TypeError.
    """

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("most", "run", "values")

    def __init__(self, values: NDArray[Any], run: Run, most: int = 0) -> None:
        self.values = values
        """Integers of 64 bits, Python's integers, or floats of 64 bits."""
        self.run = run
        self.most = most
        """Of integers: what no lane's absolute value passes."""

    def __add__(self, other: Any) -> Any:
        return _computed(self, other, operator.add, operator.add)

    def __radd__(self, other: Any) -> Any:
        return _computed(other, self, operator.add, operator.add)

    def __sub__(self, other: Any) -> Any:
        return _computed(self, other, operator.sub, operator.add)

    def __rsub__(self, other: Any) -> Any:
        return _computed(other, self, operator.sub, operator.add)

    def __mul__(self, other: Any) -> Any:
        return _computed(self, other, operator.mul, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return _computed(other, self, operator.mul, operator.mul)

    def __floordiv__(self, other: Any) -> Any:
        return _divided(self, other, operator.floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided(other, self, operator.floordiv)

    def __mod__(self, other: Any) -> Any:
        return _divided(self, other, operator.mod)

    def __rmod__(self, other: Any) -> Any:
        return _divided(other, self, operator.mod)

    def __truediv__(self, other: Any) -> Any:
        return _quotient(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _quotient(other, self)

    def __neg__(self) -> Wide:
        return Wide(-self.values, self.run, self.most)

    def __pos__(self) -> Wide:
        return self

    def __abs__(self) -> Wide:
        return Wide(abs(self.values), self.run, self.most)

    def __round__(self) -> Wide:
        if not _is_float(self):
            return self
        most = round(float(abs(self.values).max()))
        if most < MOST_INT64:
            return Wide(np.rint(self.values).astype(np.int64), self.run, most)
        return Wide(np.array([round(each) for each in self.values.tolist()], dtype=object), self.run, most)

    def __lt__(self, other: Any) -> Any:
        return _compared(self, other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return _compared(self, other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return _compared(self, other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return _compared(self, other, operator.ge)

    def __eq__(self, other: Any) -> Any:
        return _compared(self, other, operator.eq)

    def __ne__(self, other: Any) -> Any:
        return _compared(self, other, operator.ne)

    def __bool__(self) -> bool:
        return self.run.decide(self.values != 0)

    def __str__(self) -> str:
        raise TypeError("a column of numbers has no text")

    def __format__(self, form: str) -> str:
        raise TypeError("a column of numbers has no text")


def wide(values: Column, run: Run) -> Wide:
    """A column as a number; it is not empty."""
    return Wide(values, run, max(abs(int(values.min())), abs(int(values.max()))))


def _is_number(value: Any) -> bool:
    return isinstance(value, (Wide, int, float))


def _is_float(number: Any) -> bool:
    return bool(number.values.dtype.kind == "f") if isinstance(number, Wide) else isinstance(number, float)


def _most(number: Any) -> int:
    if isinstance(number, Wide):
        return number.most
    return 0 if isinstance(number, float) else abs(number)


def _run_of(left: Any, right: Any) -> Run:
    run: Run = left.run if isinstance(left, Wide) else right.run
    return run


def _values(number: Any, *, as_python: bool) -> Any:
    """What numpy computes with: 64 bits, or Python's integers, which it then computes with one by one."""
    if not isinstance(number, Wide):
        return number
    return number.values.astype(object) if as_python else number.values


def _computed(left: Any, right: Any, operate: Callable[[Any, Any], Any], bound: Callable[[int, int], int]) -> Any:
    """Sum, difference or product.

    Args:
        left: a number.
        right: another; one of them is a `Wide`.
        operate: the operation.
        bound: of two integers' absolute values, what the result's does not pass.
    """
    if not (_is_number(left) and _is_number(right)):
        return NotImplemented
    run = _run_of(left, right)
    if _is_float(left) or _is_float(right):
        result = operate(_values(left, as_python=False), _values(right, as_python=False))
        return Wide(result.astype(np.float64, copy=False), run)
    most = bound(_most(left), _most(right))
    as_python = max(most, _most(left), _most(right)) >= MOST_INT64
    return Wide(operate(_values(left, as_python=as_python), _values(right, as_python=as_python)), run, most)


def _divided(left: Any, right: Any, operate: Callable[[Any, Any], Any]) -> Any:
    """Floor or remainder of two integers; numpy rounds those of floats in a way of its own."""
    if not (_is_number(left) and _is_number(right)) or _is_float(left) or _is_float(right):
        return NotImplemented
    _check_divisor(right)
    return _computed(left, right, operate, lambda dividend, divisor: dividend + divisor)


def _quotient(left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right)):
        return NotImplemented
    _check_divisor(right)
    as_python = max(_most(left), _most(right)) > MOST_EXACT_FLOAT
    result = _values(left, as_python=as_python) / _values(right, as_python=as_python)
    return Wide(result.astype(np.float64, copy=False), _run_of(left, right))


def _check_divisor(number: Any) -> None:
    if np.any((number.values if isinstance(number, Wide) else number) == 0):
        raise ZeroDivisionError


def _compared(left: Any, right: Any, compare: Callable[[Any, Any], Any]) -> Any:
    if not (_is_number(left) and _is_number(right)):
        return NotImplemented
    limit = MOST_EXACT_FLOAT if _is_float(left) or _is_float(right) else MOST_INT64
    as_python = max(_most(left), _most(right)) > limit
    return _run_of(left, right).decide(compare(_values(left, as_python=as_python), _values(right, as_python=as_python)))
