"""Times matrix products, copies and collectives on the real workers, once a group, as a prior for the step times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import deepspeed.comm as dist
import torch

from raysweep.probe import Probe, Timings
from raysweep.units import MIB
from raysweep.worker.birth import DTYPES
from raysweep.worker.device import open_device
from raysweep.worker.process import RankContext

SIDES = {"cpu": (128, 256, 512), "cuda": (1024, 4096, 8192)}
COPIED_BYTES = {"cpu": (MIB, 8 * MIB, 64 * MIB), "cuda": (16 * MIB, 128 * MIB, 1024 * MIB)}
SENT_BYTES = {"cpu": (16 * 1024, 256 * 1024, 4 * MIB), "cuda": (64 * 1024, 4 * MIB, 128 * MIB)}
"""Device type -> three sizes each: the call's own time rules the smallest, the rate the largest."""
MOST_RUNS = 5
RUN_FOR_S = 0.05
"""A size is run again until it took so long, so that the whole benchmark takes about a second."""


def micro_benchmark(rank: RankContext, *, device: str, precision: str) -> Probe:
    """Run it; every rank of the group calls this, and all get the same figures.

    The CUDA sizes have not been run on a device.
    """
    place, dtype = open_device(device).place, DTYPES[precision]
    stopwatch = _Stopwatch(rank, open_device(device).synchronize)
    element_bytes = torch.empty((), dtype=dtype).element_size()
    sent = [size // element_bytes // rank.world_size * rank.world_size for size in SENT_BYTES[device]]
    is_alone = rank.world_size == 1
    return Probe(
        matmul_s=stopwatch.sweep(SIDES[device], lambda side: _product(side, place, dtype)),
        copy_s=stopwatch.sweep(COPIED_BYTES[device], lambda size: _copy(size, place)),
        all_reduce_s=()
        if is_alone
        else stopwatch.sweep(sent, lambda count: _all_reduce(count, place, dtype), unit=element_bytes),
        all_gather_s=()
        if is_alone
        else stopwatch.sweep(sent, lambda count: _all_gather(count, place, dtype, rank), unit=element_bytes),
    )


class _Stopwatch:
    """Times a call over a few sizes; the ranks agree on the slowest, so that all run as often."""

    def __init__(self, rank: RankContext, synchronize: Callable[[], None]) -> None:
        self._rank = rank
        self._synchronize = synchronize

    def sweep(
        self, sizes: tuple[int, ...] | list[int], make: Callable[[int], Callable[[], object]], *, unit: int = 1
    ) -> Timings:
        """(Size x unit, median seconds) for each size; the first run of a size is not counted."""
        return tuple((size * unit, self._median_s(make(size))) for size in sizes)

    def _median_s(self, call: Callable[[], object]) -> float:
        self._once(call)
        times_s: list[float] = []
        while len(times_s) < MOST_RUNS and sum(times_s) < RUN_FOR_S:
            times_s.append(self._rank.largest([self._once(call)])[0])
        return statistics.median(times_s)

    def _once(self, call: Callable[[], object]) -> float:
        self._synchronize()
        began_s = time.perf_counter()
        call()
        self._synchronize()
        return time.perf_counter() - began_s


def _product(side: int, place: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    left, right = (torch.ones(side, side, dtype=dtype, device=place) for _ in range(2))
    return lambda: left @ right


def _copy(size_bytes: int, place: torch.device) -> Callable[[], object]:
    source = torch.ones(size_bytes, dtype=torch.uint8, device=place)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _all_reduce(count: int, place: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    tensor = torch.zeros(count, dtype=dtype, device=place)
    return lambda: dist.all_reduce(tensor)


def _all_gather(count: int, place: torch.device, dtype: torch.dtype, rank: RankContext) -> Callable[[], object]:
    whole = torch.zeros(count, dtype=dtype, device=place)
    own = torch.zeros(count // rank.world_size, dtype=dtype, device=place)
    return lambda: dist.allgather_fn(whole, own)
