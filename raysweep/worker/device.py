"""What a device is asked while a candidate runs: memory, its limit, and to finish what it was given."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from raysweep.units import GIB
from raysweep.worker.tracker import LiveBytesTracker

OVERHEAD_ALLOWANCE_BYTES = GIB * 3 // 2
"""Most that a CUDA context with its libraries and NCCL buffers is taken to use; what is beyond belongs to others."""


class MemoryGauge(Protocol):
    """Bytes in use, and the most in use since the last reset; `phase` is what the process is doing."""

    phase: str

    def current_bytes(self) -> int:
        """Bytes alive now."""
        ...

    def peak_bytes(self) -> int:
        """Most bytes alive at once since the last `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Begin a new peak at what is alive now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """What the device's allocator and driver say at the end of a candidate; empty on CPU."""

    peak_bytes: int | None = None
    """Highest allocated since the last reset of the peak."""
    reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    """Used on the whole device: context, NCCL and other processes included."""
    allocation_retries: int = 0
    """Since the timed window began."""
    foreign_bytes: int = 0


class Device(Protocol):
    """The device of this rank."""

    place: torch.device

    def name(self) -> str:
        """The model of the device, for the record."""
        ...

    def start_candidate(self, budget_bytes: int | None) -> None:
        """Free what the last candidate left in caches, and enforce the budget where the device can."""
        ...

    def gauge(self, *, limit_bytes: int | None, rank: int) -> AbstractContextManager[MemoryGauge]:
        """Follow the memory of what is built inside the context; stop at `limit_bytes` where the device cannot."""
        ...

    def start_window(self) -> None:
        """Note the counters from which the timed window counts."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""
        ...

    def usage(self) -> DeviceUsage:
        """The allocator's figures of this candidate."""
        ...

    def free_caches(self) -> None:
        """Give cached memory back."""
        ...


def open_device(device_type: str) -> Device:
    """The device that this process was given, `cpu` or `cuda`."""
    assert device_type in ("cpu", "cuda"), device_type
    return CudaDevice() if device_type == "cuda" else CpuDevice()


class CpuDevice:
    """The CPU as a device whose memory is the bytes of live tensors."""

    def __init__(self) -> None:
        self.place = torch.device("cpu")

    def name(self) -> str:
        """`cpu`."""
        return "cpu"

    def start_candidate(self, budget_bytes: int | None) -> None:
        """Collect garbage; the budget is judged after the memory pass."""
        gc.collect()

    @contextmanager
    def gauge(self, *, limit_bytes: int | None, rank: int) -> Iterator[MemoryGauge]:
        """A tracker of live tensor bytes. Compiled code would hide its tensors from it, so nothing is compiled inside.

        Without that stance the compiler would also leave out for good what it first met under the tracker.
        """
        eager = torch.compiler.set_stance("force_eager")
        with eager, LiveBytesTracker(limit_bytes=limit_bytes, rank=rank) as tracker:
            yield tracker

    def start_window(self) -> None:
        """Nothing to note."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def usage(self) -> DeviceUsage:
        """Empty: the tracker has been asked already."""
        return DeviceUsage()

    def free_caches(self) -> None:
        """Nothing is cached."""


class CudaDevice:
    """A CUDA device with PyTorch's caching allocator."""

    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self._foreign_bytes = 0
        self._retries_before = 0

    def name(self) -> str:
        """The device's model."""
        return torch.cuda.get_device_name(self.place)

    def start_candidate(self, budget_bytes: int | None) -> None:
        """Empty the cache, and cap the allocator so that tensors, context and libraries together keep the budget."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.place)
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.place)
        beside_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(self.place)
        own_bytes, self._foreign_bytes = split_overhead(beside_bytes)
        fraction = memory_fraction(budget_bytes, overhead_bytes=own_bytes, total_bytes=total_bytes)
        torch.cuda.set_per_process_memory_fraction(fraction, self.place)

    @contextmanager
    def gauge(self, *, limit_bytes: int | None, rank: int) -> Iterator[MemoryGauge]:
        """The allocator's own counters; the cap of `start_candidate` is the limit."""
        yield CudaGauge(self.place)

    def start_window(self) -> None:
        """Note the allocation retries so far."""
        self._retries_before = self._retries()

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self.place)

    def usage(self) -> DeviceUsage:
        """Peak, reserved and used bytes, and the retries of the window."""
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.place)
        return DeviceUsage(
            peak_bytes=torch.cuda.max_memory_allocated(self.place),
            reserved_bytes=torch.cuda.max_memory_reserved(self.place),
            device_used_bytes=total_bytes - free_bytes,
            allocation_retries=self._retries() - self._retries_before,
            foreign_bytes=self._foreign_bytes,
        )

    def free_caches(self) -> None:
        """Give cached blocks back to the driver."""
        torch.cuda.empty_cache()

    def _retries(self) -> int:
        return int(torch.cuda.memory_stats(self.place).get("num_alloc_retries", 0))


class CudaGauge:
    """The counters of the caching allocator."""

    def __init__(self, place: torch.device) -> None:
        self.phase = "build"
        self._place = place

    def current_bytes(self) -> int:
        """Bytes allocated now."""
        return torch.cuda.memory_allocated(self._place)

    def peak_bytes(self) -> int:
        """Most bytes allocated since the last `reset_peak`."""
        return torch.cuda.max_memory_allocated(self._place)

    def reset_peak(self) -> None:
        """Begin a new peak at what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self._place)


def split_overhead(beside_bytes: int) -> tuple[int, int]:
    """Device bytes outside our allocator as (own context and libraries, other processes).

    The driver does not tell them apart, so what is beyond OVERHEAD_ALLOWANCE_BYTES counts as foreign.
    """
    own_bytes = min(max(beside_bytes, 0), OVERHEAD_ALLOWANCE_BYTES)
    return own_bytes, max(0, beside_bytes - own_bytes)


def memory_fraction(budget_bytes: int | None, *, overhead_bytes: int, total_bytes: int) -> float:
    """Share of the device for the allocator: (budget - overhead) / total within 0 and 1, or all without a budget."""
    if budget_bytes is None:
        return 1.0
    return min(1.0, max(0.0, (budget_bytes - overhead_bytes) / total_bytes))
