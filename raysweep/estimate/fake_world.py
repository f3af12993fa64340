"""Makes a process one rank of a world that is not there: torch's fake process group, and DeepSpeed told not to wait."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from raysweep.worker.process import RankContext

T = TypeVar("T")


class LoneRank(RankContext):
    """A rank that agrees with itself; the others are taken to say the same."""

    __slots__ = ()

    def largest(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return [float(value) for value in values]

    def gather(self, value: T) -> list[T]:
        """The value, once for each rank."""
        return [value] * self.world_size

    def barrier(self, *, timeout_s: float) -> None:
        """Nobody is waited for."""


def join_fake_world(*, rank: int, world_size: int) -> LoneRank:
    """Start torch's fake process group, whose collectives return at once, and DeepSpeed on it; once a process."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    _start_deepspeed(rank, world_size)
    return LoneRank(rank=rank, local_rank=rank, world_size=world_size, node="fake", gloo=None)


def join_real_world(*, rank: int, world_size: int, store: str) -> RankContext:
    """Start gloo with live peers, which meet over the file `store`, and DeepSpeed on it; once a process."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    _start_deepspeed(rank, world_size)
    return RankContext(rank=rank, local_rank=rank, world_size=world_size, node="here", gloo=dist.group.WORLD)


def _start_deepspeed(rank: int, world_size: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_SIZE=str(world_size))
    # Not at the head of the file: DS_ACCELERATOR must be set before.
    import deepspeed

    # `deepspeed.comm.torch`, as an attribute, is torch itself.
    backend = sys.modules["deepspeed.comm.torch"]
    # The shared-memory collective waits for live peers, and has to be compiled; it moves no tensor of an engine.
    backend.build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)


INTEGER_CHECK = "assert_ints_same_as_other_ranks"
"""Stage 3 compares parameter numbers across ranks with it; three modules have it by name."""


@contextmanager
def alone() -> Iterator[None]:
    """Inside, code that would ask other ranks, or that takes other ways with fake tensors, goes the way of a real run.

    `Module._apply` swaps fake parameters, which fails once something refers to them; a real one assigns `.data`.
    transformers builds masks, and takes another path of grouped-query attention, where it finds fake tensors.
    """
    with mock.patch.object(nn.Module, "_apply", _apply_in_place):
        patches = [
            mock.patch.object(module, INTEGER_CHECK, _no_check)
            for name, module in list(sys.modules.items())
            if name.startswith("deepspeed.") and INTEGER_CHECK in vars(module)
        ]
        transformers = sys.modules.get("transformers.utils.import_utils")
        if transformers is not None and hasattr(transformers, "is_fake_tensor"):
            patches.append(mock.patch.object(transformers, "is_fake_tensor", _no_check))
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


def _no_check(*args: Any) -> None:
    """Finds nothing."""


def _apply_in_place(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
    """`Module._apply` as it works on real tensors of one type."""
    for child in self.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    for parameter in self._parameters.values():
        if parameter is None:
            continue
        with torch.no_grad():
            parameter.data = fn(parameter)
            if parameter.grad is not None:
                parameter.grad.data = fn(parameter.grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self
