"""A user's factory that goes wrong where it is told to: on which rank, in which phase of which step, and how."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import CheckpointError

WIDTH = 64
CGROUP = Path("/sys/fs/cgroup/memory")


def _raise(error: BaseException) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


def _allocator_fails() -> None:
    """A real failure of PyTorch's allocator: the process may not grow any more."""
    grown = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (grown + 2**26, hard))
    try:
        torch.ones(2**28)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _kernel_kills() -> None:
    """A container's memory runs out: the kernel kills this process."""
    group = CGROUP / f"raysweep-chaos-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(2**28))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    torch.ones(2**28)


def _fill_memory() -> None:
    """Grows until the node's memory monitor ends it."""
    kept = []
    while True:
        kept.append(torch.ones(2**24))
        time.sleep(0.02)


def _ignore_sigterm_and_sleep() -> None:
    # Python sets handlers in its main thread only, and a training function runs in another.
    ctypes.CDLL(None).signal(signal.SIGTERM, 1)
    time.sleep(600)


def _disarm_the_watchdog_and_sleep() -> None:
    faulthandler.cancel_dump_traceback_later()
    time.sleep(600)


def _spin() -> None:
    while True:
        pass


def _wait_for_nobody() -> None:
    dist.recv(torch.zeros(1), src=1 - dist.get_rank())


FAULTS: dict[str, Callable[[], None]] = {
    "value_error": _raise(ValueError("the label is out of range")),
    "recursion": _raise(RecursionError("maximum recursion depth exceeded")),
    "exit": lambda: sys.exit(3),
    "device_oom": _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
    "memory_error": _raise(MemoryError()),
    "allocator": _allocator_fails,
    "kernel_kills": _kernel_kills,
    "fill_memory": _fill_memory,
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": lambda: ctypes.string_at(0) and None,
    "sigabrt": os.abort,
    "os_exit": lambda: os._exit(7),
    "sleep": lambda: time.sleep(600),
    "spin": _spin,
    "ignore_sigterm": _ignore_sigterm_and_sleep,
    "no_watchdog": _disarm_the_watchdog_and_sleep,
    "recv": _wait_for_nobody,
    "checkpoint_error": _raise(CheckpointError("Recomputed values have different metadata")),
    "disk_full": _raise(OSError(28, "No space left on device")),
}


class Model(nn.Module):
    """Four blocks and a loss. `trigger` runs at the start of each forward and, through a hook, of each backward."""

    def __init__(self, trigger: Callable[[str], None], spoils: Callable[[str], bool]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.trigger = trigger
        self.spoils = spoils

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.trigger("forward")
        for block in self.blocks:
            x = torch.tanh(block(x))
        infinite = self.spoils("gradient")
        x.register_hook(
            lambda gradient: (self.trigger("backward"), gradient * float("inf") if infinite else gradient)[1]
        )
        loss = x.float().square().mean()
        return loss * float("nan") if self.spoils("loss") else loss


class _Trigger:
    """Counts how often each phase began, and sets the fault off at the one that was asked for."""

    def __init__(self, fault: Callable[[], None], *, phase: str, step: int, once_file: str) -> None:
        self._fault = fault
        self._phase = phase
        self._left = step
        self._once_file = once_file

    def __call__(self, phase: str) -> None:
        if phase != self._phase:
            return
        self._left -= 1
        if self._left == 0 and not self._has_happened():
            self._fault()

    def _has_happened(self) -> bool:
        if not self._once_file:
            return False
        path = Path(f"{self._once_file}-{os.environ['RANK']}")
        happened = path.exists()
        path.touch()
        return happened


def make(*, kind: str, rank: int = 1, phase: str = "forward", step: int = 1, once_file: str = "") -> tuple[Any, Any]:
    """A model and batches in which a fault is hidden.

    Args:
        kind: one of `FAULTS`, or `nan`, `overflow_once`, `overflow_always`, `uneven`, `wrong_type`, `none`.
        rank: on which rank; -1 on all.
        phase: build, batch, forward, backward or step.
        step: at which time that the phase begins, counted from 1; the first two belong to the memory pass.
        once_file: a file whose existence says that it has happened before; empty for every time.
    """
    # Where the model is only counted, before a sweep, there is no rank, and nothing goes wrong.
    here = "RANK" in os.environ and rank in (-1, int(os.environ["RANK"]))
    trigger = _Trigger(FAULTS.get(kind, _nothing) if here else _nothing, phase=phase, step=step, once_file=once_file)
    trigger("build")
    if kind == "wrong_type" and here:
        return 7, 7
    if phase == "step" and here:
        register_optimizer_step_pre_hook(lambda *given: trigger("step"))
    model = Model(trigger, _Spoiler(kind if here else "none", step=step))
    return model, _batches(trigger, few=kind == "uneven" and here)


def _nothing() -> None:
    """No fault."""


class _Spoiler:
    """Says whether the loss, or the gradient, of this forward is to be spoiled."""

    def __init__(self, kind: str, *, step: int) -> None:
        self._kind = kind
        self._step = step
        self._forwards = 0

    def __call__(self, what: str) -> bool:
        if what == "gradient":
            self._forwards += 1
            once, always = self._kind == "overflow_once", self._kind == "overflow_always"
            return always or (once and self._forwards == self._step)
        return self._kind == "nan" and self._forwards >= self._step


def _batches(trigger: Callable[[str], None], *, few: bool) -> Any:
    def batches(*, micro_batch_size: int, rank: int, world_size: int, seed: int) -> Iterator[dict[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed + rank)
        for _ in range(5 if few else 10_000):
            trigger("batch")
            yield {"x": torch.randn(micro_batch_size, WIDTH, generator=generator)}

    return batches
