"""What a micro-benchmark of real workers and links showed: rates of computation, memory and collectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Timings = tuple[tuple[int, float], ...]
"""(Size, seconds) pairs, ascending in size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The micro-benchmark of one worker group; every time is the slowest rank's."""

    matmul_s: Timings
    """Side of two square matrices in the training dtype -> seconds of their product."""
    copy_s: Timings
    """Bytes -> seconds to copy them, which reads and writes them."""
    all_reduce_s: Timings = ()
    """Bytes of the tensor -> seconds; empty for a single worker."""
    all_gather_s: Timings = ()
    """Bytes of the gathered tensor -> seconds."""

    @property
    def flop_per_s(self) -> float:
        """The best of the sweep: a product of sides n has 2 n^3 FLOPs."""
        return max(2 * side**3 / seconds for side, seconds in self.matmul_s)

    @property
    def memory_bytes_per_s(self) -> float:
        """Of the largest copy, which no cache holds; read and written bytes both count."""
        size_bytes, seconds = self.copy_s[-1]
        return 2 * size_bytes / seconds


def alpha_beta(timings: Timings) -> tuple[float, float]:
    """Seconds a call and seconds a byte of a collective: the line through its timings, in relative error.

    Minimises sum ((alpha + beta x - t) / t)^2 over alpha, beta >= 0.
    """
    return _line([1 / t for _, t in timings], [x / t for x, t in timings])


def _line(ones: Sequence[float], sizes: Sequence[float]) -> tuple[float, float]:
    """alpha and beta of alpha `ones` + beta `sizes` = 1 by non-negative least squares; of two unknowns, by cases."""
    aa, ab, bb = _dot(ones, ones), _dot(ones, sizes), _dot(sizes, sizes)
    a, b = math.fsum(ones), math.fsum(sizes)
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
        if alpha >= 0 and beta >= 0:
            return alpha, beta
    only_calls, only_bytes = a / aa, b / bb
    calls_miss = math.fsum((only_calls * one - 1) ** 2 for one in ones)
    bytes_miss = math.fsum((only_bytes * size - 1) ** 2 for size in sizes)
    return (only_calls, 0.0) if calls_miss <= bytes_miss else (0.0, only_bytes)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))
