"""Makes a process ready for DeepSpeed, and lets the ranks of a group agree."""

from __future__ import annotations

import gc
import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """One rank of a worker group, as the launcher placed it."""

    rank: int
    local_rank: int
    world_size: int
    node: str
    gloo: Any
    """Process group for results and decisions: on the CPU also where training runs on CUDA."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over all ranks; whole numbers are exact below 2**53."""
        tensor = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.gloo)
        return [float(value) for value in tensor.tolist()]

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in rank order."""
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=self.gloo)
        return gathered

    def barrier(self, *, timeout_s: float) -> None:
        """Wait until every rank has come.

        Raises:
            RuntimeError: when one has not within `timeout_s`.
        """
        dist.monitored_barrier(group=self.gloo, timeout=timedelta(seconds=timeout_s))

    def agree_on_name(self) -> str:
        """A name that is new, and the same on every rank."""
        return self.gather(uuid.uuid4().hex[:12])[0]


def prepare_process(*, rank: int, local_rank: int, local_world_size: int, world_size: int, node: str) -> RankContext:
    """Set ranks and device for DeepSpeed and start its communication; every rank calls this once.

    torch.distributed must be up already, and on CUDA the launcher has chosen this process's device. DeepSpeed reads
    these variables when it is imported, and guesses ranks from the host name where they are missing.
    """
    assert dist.is_initialized(), "torch.distributed comes from the launcher"
    on_cuda = torch.cuda.is_available()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(device_index(local_rank, torch.cuda.current_device() if on_cuda else None)),
        WORLD_SIZE=str(world_size),
        LOCAL_SIZE=str(local_world_size),
    )
    if not on_cuda:
        os.environ["DS_ACCELERATOR"] = "cpu"
    # Not at the head of the file: the import reads the variables.
    import deepspeed

    from raysweep.worker.operators import build_operators, use_own_folder

    folder = use_own_folder()
    if not on_cuda:
        build_operators(folder)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.init_distributed(dist_backend="nccl" if on_cuda else "gloo", verbose=False)
    context = RankContext(
        rank=rank, local_rank=local_rank, world_size=world_size, node=node, gloo=dist.new_group(backend="gloo")
    )
    context.gather(rank)
    # Every rank has mapped its buffer by now, so the memory lives exactly as long as they do.
    shared_buffer(rank).unlink(missing_ok=True)
    # What the imports made stays for ever. The collector need not look through its half million objects again, at
    # every teardown of a candidate.
    gc.collect()
    gc.freeze()
    return context


def device_index(local_rank: int, current_device: int | None) -> int:
    """What LOCAL_RANK says to DeepSpeed, which takes it for the index of the process's device.

    The launcher has chosen the device by what Ray assigned: with CUDA_VISIBLE_DEVICES of 3,1 the rank that has GPU 1
    has index 1, whatever its local rank; and index 0 where a process sees its own device only.

    Args:
        local_rank: among the ranks of the node.
        current_device: index of the CUDA device that was chosen; None without CUDA.
    """
    return local_rank if current_device is None else current_device


def shared_buffer(rank: int) -> Path:
    """A rank's shared-memory buffer (66 MiB), which DeepSpeed leaves behind even at a clean end.

    The name is the one of `shm_initialize` in csrc/cpu/comm/shm.cpp; address and port, which the launcher has set,
    make it this job's.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return Path("/dev/shm", f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}")
