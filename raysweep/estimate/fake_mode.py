"""Runs operators without their numbers: weights are fake, what follows from integers is real, bytes are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, ValuesView
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from raysweep.allocations import AllocationLog
from raysweep.estimate.fake_log import StepLog
from raysweep.estimate.fake_places import kind_of_birth, place_of_call
from raysweep.trace import Collective, StandIn
from raysweep.worker.tracker import LiveBytesTracker

aten = torch.ops.aten

FILL_VALUES = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
"""Operators that need only the shape of a fake tensor, and the value that they fill with."""

LITERALS = ("lift_fresh", "lift")
"""Makes a tensor of `torch.tensor(...)`; one of floats may become a parameter, and so is fake."""

RANDOM_INTEGERS = ("randint", "randperm")
INDEXING = ("index", "index_put", "index_put_")


class FakeEngineTracker(LiveBytesTracker):  # type: ignore[no-untyped-call]
    """Live bytes by kind, collectives and stand-in scalars of a step that is not computed.

    It lies over a `FakeTensorMode(allow_non_fake_inputs=True)`. Integer and bool tensors are born real, floats fake.
    What is made of real tensors alone is real, so that branches on it go the way of a real run, and shapes that depend
    on it are right. A number that is read from a fake tensor is a stand-in: 1.0, 0 or False, noted with its place.
    """

    def __init__(self, *, rank: int, copies_reduce_scatter: bool) -> None:
        super().__init__(rank=rank)
        self._copies_reduce_scatter = copies_reduce_scatter
        self._kinds: dict[int, str] = {}
        self._bytes_by_kind: Counter[str] = Counter()
        self._peak_by_kind: dict[str, int] = {}
        self._log = StepLog()
        self._open_phase = self.phase
        self._calls: Counter[str] = Counter()
        self._call_bytes: Counter[str] = Counter()
        self._stand_ins: Counter[tuple[str, str, str, bool]] = Counter()
        self.workspace_bytes = 0
        self.closed_phases: list[tuple[str, int, dict[str, int]]] = []
        """Phase, peak bytes, and bytes by kind at the peak, in the order in which phases ended."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            # Half of all calls, and dear on the way through the mode below.
            return args[0].fake_device
        if func is aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return self._scalar_of(args[0])
        if func.namespace == "c10d":
            self._note_collective(func, args)
        result = self._run(func, args, kwargs)
        for tensor in _tensors(result):
            self.add(tensor)
        return result

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = [*_tensors(args), *_tensors(kwargs.values())]
        name = _base_name(func)
        is_literal = name in LITERALS and inputs[0].is_floating_point()
        if inputs and func.namespace == "aten" and not is_literal and all(_has_value(tensor) for tensor in inputs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if name in INDEXING:
            args = _without_masks(args)
        if func._schema.is_mutable and inputs and _has_value(inputs[0]) and func.namespace == "aten":
            self._note(str(func), "a real tensor keeps its former values")
        # A generator belongs to a device on which no fake tensor is.
        kept = {**kwargs, "generator": None} if "generator" in kwargs else kwargs
        if not inputs and (name in RANDOM_INTEGERS or _is_exact(kwargs.get("dtype") or torch.float32)):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        result = func(*args, **kept)
        return self._with_values(func, name, args, kwargs, inputs, result)

    def _with_values(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[torch.Tensor], result: Any
    ) -> Any:
        """The result with real values where they follow from the arguments: integer factories."""
        if not isinstance(result, FakeTensor) or not _is_exact(result.dtype):
            return result
        with unset_fake_temporarily():
            if not inputs:
                return func(*args, **kwargs)
            if name in FILL_VALUES:
                return torch.full(tuple(result.shape), FILL_VALUES[name], dtype=result.dtype)
        return result

    def _scalar_of(self, tensor: FakeTensor) -> bool | int | float:
        if tensor.constant is not None:
            with unset_fake_temporarily():
                known: bool | int | float = tensor.constant.item()
                return known
        value = False if tensor.dtype == torch.bool else 1.0 if tensor.dtype.is_floating_point else 0
        self._note("item", repr(value))
        return value

    def _note(self, operator: str, value: str) -> None:
        place, is_expected = place_of_call()
        self._stand_ins[operator, place, value, is_expected] += 1

    def _note_collective(self, func: Any, args: tuple[Any, ...]) -> None:
        sizes = [tensor.numel() * tensor.element_size() for tensor in _tensors(args)]
        name, largest = _base_name(func), max(sizes, default=0)
        self._calls[name] += 1
        self._call_bytes[name] += largest
        if name == "_reduce_scatter_base_" and self._copies_reduce_scatter:
            # gloo clones its input on the calling thread, where a real run's count sees it
            # (`reduce_scatter_tensor_coalesced` in ProcessGroupGloo.cpp of torch).
            self.add(torch.empty_like(args[1]))
        if name.startswith("_allgather") or name.startswith("allgather"):
            self.workspace_bytes = max(self.workspace_bytes, largest)

    def add(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage, and its kind by where it is made."""
        before_bytes = self.current_bytes()
        super().add(tensor)
        grown_bytes = self.current_bytes() - before_bytes
        if grown_bytes:
            kind = kind_of_birth(self.phase)
            key = tensor.untyped_storage()._cdata
            self._kinds[key] = kind
            self._log.allocate(key, grown_bytes, kind)
            self._bytes_by_kind[kind] += grown_bytes
            if self.current_bytes() == self.peak_bytes():
                self._peak_by_kind = dict(self._bytes_by_kind)

    def _drop(self, key: int) -> None:
        before_bytes = self.current_bytes()
        super()._drop(key)
        kind = self._kinds.pop(key, None)
        if kind is not None:
            self._bytes_by_kind[kind] -= before_bytes - self.current_bytes()
            self._log.free(key)

    def replace(self, real: Iterable[torch.Tensor], fakes: Iterable[torch.Tensor]) -> None:
        """Count `fakes` in place of the `real` tensors that they stand for."""
        for tensor in real:
            self._drop(tensor.untyped_storage()._cdata)
        for tensor in fakes:
            self.add(tensor)

    def reset_peak(self) -> None:
        """Close the phase before, and begin a new peak at what is alive now."""
        self.closed_phases.append((self._open_phase, self.peak_bytes(), self._peak_by_kind))
        super().reset_peak()
        self._peak_by_kind = dict(self._bytes_by_kind)
        self._open_phase = self.phase
        self._log.begin_phase(self.phase)

    def start_step(self) -> None:
        """Count collectives, and keep allocations, from here."""
        self._calls.clear()
        self._call_bytes.clear()
        self._log = StepLog()
        for key, kind in self._kinds.items():
            self._log.allocate(key, self._sizes[key], kind)

    def passing(self) -> AbstractContextManager[None]:
        """Inside, allocations that do not outlive it are counted, but not kept."""
        return self._log.passing()

    def allocations(self) -> AllocationLog:
        """What was allocated and freed since `start_step`."""
        return self._log.closed()

    def collectives(self) -> tuple[Collective, ...]:
        """Calls since `start_step`, by name."""
        return tuple(
            Collective(name=name, count=self._calls[name], size_bytes=self._call_bytes[name])
            for name in sorted(self._calls)
        )

    def stand_ins(self) -> tuple[StandIn, ...]:
        """Every number that was made up, with its place."""
        return tuple(
            StandIn(operator=operator, place=place, value=value, count=count, expected=expected)
            for (operator, place, value, expected), count in self._stand_ins.items()
        )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in what an operator takes or gives: lists and tuples of tensors, numbers and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | ValuesView):
        for item in value:
            yield from _tensors(item)


def _base_name(func: Any) -> str:
    return str(func._schema.name).partition("::")[2]


def _is_exact(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _has_value(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _without_masks(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Indices with real bool masks replaced by the positions that they select, of which the number is then known."""
    indices: list[Any] = []
    for index in args[1]:
        is_mask = isinstance(index, torch.Tensor) and index.dtype == torch.bool and _has_value(index)
        if is_mask:
            with unset_fake_temporarily():
                indices += list(index.nonzero().unbind(1))
        else:
            indices.append(index)
    return (args[0], indices, *args[2:])
