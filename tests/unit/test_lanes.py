"""One call for a column gives what a call for each number gives, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from raysweep.lanes import at, evaluate
from raysweep.wide import Run, wide


def _by_column(function: Callable[..., Any], *columns: list[int]) -> list[Any]:
    found: dict[int, Any] = {}
    for piece in evaluate(function, *(np.array(column, dtype=np.int64) for column in columns)):
        for lane, member in enumerate(piece.members.tolist()):
            assert member not in found, "a member is in one piece"
            found[member] = at(piece.result, lane)
    return [found[member] for member in range(len(columns[0]))]


def _same(function: Callable[..., Any], *columns: list[int]) -> None:
    plain = [function(*numbers) for numbers in zip(*columns, strict=True)]
    together = _by_column(function, *columns)
    assert together == plain
    assert list(map(repr, together)) == list(map(repr, plain)), "ints stay ints, floats floats, bools bools"


NUMBERS = [1, 2, 3, 5, 8, 13, 1000, 1001, 10**6, 10**6 + 1, 2**31, 2**40 + 7]


@pytest.mark.parametrize(
    "function",
    [
        lambda n: 3 * n - n // 7 + n % 5 - (-n) - abs(-n) + +n,
        lambda n: round(16.05 * n) + round(n / 20) + round(2.5 * n) + round(n),
        lambda n: (1 / n, 7 // n, 100 % n, 0.1 + n, 1 - n, n - 0.3, n / 3, 3.5 / n),
        lambda n: max(n, 1000) + min(3 * n, 10**6) - (5 if n else 7),
        lambda n: n if n > 8 and n != 1001 else -n,
        lambda n: {"a": n, "b": 7, "c": (n, {"d": 2 * n})},
        lambda n: n <= 13,
        lambda n: n != 2 and n >= 3 and n < 2**40,
        lambda n: sum(n * k for k in range(5)) == 10 * n,
        lambda n: n == "auto" or n is None,
    ],
)
def test_a_formula_with_branches(function: Callable[[int], Any]) -> None:
    _same(function, NUMBERS)


def test_integers_beyond_64_bits_stay_exact() -> None:
    _same(lambda n: (n * n * n * n, round(1.5 * (n * n * n)), n**1 if n < 0 else n * 10**30, n * n > 2.0**61), NUMBERS)
    _same(lambda n: (n * n * 2**20) // 3 + (n * n * n) % 7 - n * 2**70 + 2**65, NUMBERS)
    _same(lambda n: (n * 2**30 + 1 > float(n * 2**30), n * 2**30 / 3), NUMBERS)


def test_random_formulas_of_two_columns() -> None:
    chance = random.Random(3)
    for _ in range(60):
        factors = [chance.choice([1, 2, 3, 16.05, 0.5, 1000, 2**33]) for _ in range(4)]
        limits = [chance.randrange(1, 4000) for _ in range(3)]

        def formula(a: int, b: int, factors: Any = factors, limits: Any = limits) -> Any:
            c = round(factors[0] * a) + b if a > limits[0] else round(a * factors[1]) * b
            d = max(c, limits[1] * b, key=lambda each: each * factors[2])
            return (d % limits[2], c / (a + b), -round(factors[3] * d), a * b > limits[0])

        _same(formula, *([chance.randrange(1, 5000) for _ in range(40)] for _ in range(2)))


@dataclass(frozen=True)
class _Box:
    size: int
    name: str
    inner: Any = None


def test_numbers_are_found_in_dataclasses() -> None:
    _same(lambda n: _Box(2 * n, "small" if n < 100 else "large", _Box(3, "fixed", {"deep": (n,)})), NUMBERS)


@pytest.mark.parametrize(
    "function",
    [
        str,
        float,
        hash,
        lambda n: f"{n}",
        lambda n: {1: 2}.get(n),
        lambda n: list(range(n))[:3],
        lambda n: n.bit_length(),
    ],
)
def test_what_no_column_can_do_is_done_one_by_one(function: Callable[[int], Any]) -> None:
    _same(function, [1, 2, 3, 5, 8, 13])


def test_an_error_is_that_of_the_member() -> None:
    with pytest.raises(ZeroDivisionError):
        _by_column(lambda n: 100 // (n - 5), [1, 2, 3, 4, 5, 6, 7, 8])


def test_a_function_of_few_branches_is_called_a_few_times() -> None:
    calls = []

    def function(n: int) -> int:
        calls.append(n)
        return n if n < 500 else 2 * n

    _same(function, list(range(1000)))
    assert len(calls) - 1000 == 2


def test_a_column_has_no_text_and_no_hash() -> None:
    number: Any = wide(np.arange(3), Run(lead=0, agrees=np.ones(3, dtype=bool)))
    for attempt in (str, hash, int, float, "{}".format, lambda each: each + "a", lambda each: each // 1.5):
        with pytest.raises(TypeError):
            attempt(number)
