"""Counts the bytes of live tensors as they come and go: device memory where there is no device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from raysweep.errors import OutOfMemory


class LiveBytesTracker(TorchDispatchMode):
    """Bytes of the unique storages that were made while the mode is on and still live; `phase` names the errors.

    It repeats to the byte, where a process's resident size does not, and it sees buffers that were never touched.

    Raises:
        OutOfMemory: at the allocation that goes past `limit_bytes`, where a limit is set.
    """

    def __init__(self, *, limit_bytes: int | None = None, rank: int = 0) -> None:
        super().__init__()
        self.phase = "build"
        self._limit_bytes = limit_bytes
        self._rank = rank
        self._sizes: dict[int, int] = {}
        self._current_bytes = 0
        self._peak_bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.add, result)
        return result

    def add(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage, once, until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or tensor.device.type == "meta":
            return
        self._sizes[key] = storage.nbytes()
        self._current_bytes += self._sizes[key]
        self._peak_bytes = max(self._peak_bytes, self._current_bytes)
        weakref.finalize(storage, self._drop, key)
        if self._limit_bytes is not None and self._current_bytes > self._limit_bytes:
            raise OutOfMemory(
                phase=self.phase, peak_bytes=self._current_bytes, budget_bytes=self._limit_bytes, rank=self._rank
            )

    def _drop(self, key: int) -> None:
        self._current_bytes -= self._sizes.pop(key, 0)

    def current_bytes(self) -> int:
        """Bytes alive now."""
        return self._current_bytes

    def peak_bytes(self) -> int:
        """Most bytes alive at once since the last `reset_peak`."""
        return self._peak_bytes

    def reset_peak(self) -> None:
        """Begin a new peak at what is alive now."""
        self._peak_bytes = self._current_bytes


def held_bytes(objects: Iterable[object]) -> int:
    """Bytes of the unique storages behind those objects that are tensors, e.g. among `gc.get_objects()`."""
    sizes: dict[int, int] = {}
    for item in objects:
        # Asked by type and not by isinstance, which would wake the lazy proxies of other libraries.
        if issubclass(type(item), torch.Tensor):
            storage = cast(torch.Tensor, item).untyped_storage()
            sizes[storage._cdata] = storage.nbytes() if storage.device.type != "meta" else 0
    return sum(sizes.values())
