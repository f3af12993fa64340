"""Faults inside the ranks of a real worker group: what is injected, and how the launch has to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders import make_candidate, make_request, make_workload

from raysweep.launch.devices import unsupported_precision
from raysweep.trial import LaunchRequest, Measurement

DEADLINE_S = 20.0
HERE = Path(__file__).parent
OOM_DEVICE, OOM_HOST = "OOM device", "OOM host"
USER, LOST, HUNG = "FAILED user_code", "FAILED infrastructure", "FAILED hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """One injected fault and its right outcome."""

    name: str
    inject: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `faulty.make`."""
    ends: str
    """Status, and where it has one the kind: `OOM host`, `FAILED user_code`, `COMPLETED`."""
    rank: int | None = None
    """The rank that has to be named first; None where none is, or any may be."""
    says: str = ""
    """Part of the reason."""
    shows: str = ""
    """A figure that must not be 0."""
    launches: int = 1
    once: bool = False
    """Injected in the first launch only."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the launch request."""
    precision: str = "bf16"
    zero_stage: int = 2

    def make_request(self, folder: Path, *, world_size: int = 2) -> LaunchRequest:
        """The launch in which it happens; notes of what has happened go to `folder`."""
        kwargs = dict(self.inject) if world_size > 1 else {**self.inject, "rank": 0}
        if self.once:
            kwargs["once_file"] = str(folder / self.name.replace(" ", "-"))
        model = {
            "kind": "factory",
            "factory": "faulty:make",
            "python_path": str(HERE),
            "kwargs": kwargs,
            "block_lists": ["blocks"],
        }
        workload = make_workload(model=model, world_size=world_size, precision=self.precision)
        return make_request(
            candidate=make_candidate(zero_stage=self.zero_stage),
            workload=workload,
            **{"deadline_s": DEADLINE_S, **self.request},
        )

    def lacks_on_this_cpu(self) -> str:
        """Why the precision that the fault needs does not train here; empty where it does."""
        return unsupported_precision(device="cpu", precision=self.precision, resources_per_worker={"CPU": 1.0})

    def wrong_in(self, launches: list[Measurement], *, world_size: int = 2) -> str:
        """What differs from the right outcome; empty where nothing does."""
        last = launches[-1]
        kind = last.failure_kind or last.memory_kind
        ended = f"{last.status} {kind}" if kind else str(last.status)
        right_rank = None if self.rank is None else min(self.rank, world_size - 1)
        named = last.failures[0].rank if last.failures and self.rank is not None else None
        found = {
            "ends": (self.ends, ended),
            "rank": (right_rank, named),
            "launches": (self.launches, len(launches)),
            "says": (True, self.says in last.reason),
            "shows": (True, not self.shows or bool(last.figures and getattr(last.figures, self.shows))),
        }
        differs = [f"{what}: {was} in place of {right}" for what, (right, was) in found.items() if right != was]
        return "; ".join([*differs, last.reason] if differs else [])


def _fault(
    name: str, ends: str, kind: str = "none", *, rank: int = 1, phase: str = "forward", step: int = 1, **expected: Any
) -> RankFault:
    # Of a hang nobody can tell who began it; of a fault on all ranks whoever was first is named.
    named = None if ends in ("COMPLETED", HUNG) or rank == -1 else rank
    inject = {"kind": kind, "rank": rank, "phase": phase, "step": step}
    return RankFault(name=name, ends=ends, inject=inject, **{"rank": named, **expected})


RANK_FAULTS = (
    _fault("nothing at all", "COMPLETED", "none"),
    # --- out of memory ---
    _fault("oom of rank 1 in forward while rank 0 waits in a collective", OOM_DEVICE, "device_oom", step=3),
    _fault("oom of both ranks", OOM_DEVICE, "device_oom", rank=-1, step=2),
    _fault("oom only in the optimizer step", OOM_DEVICE, "device_oom", phase="step", step=2),
    _fault("oom in backward", OOM_DEVICE, "device_oom", phase="backward", step=4),
    _fault("oom while the model is built", OOM_DEVICE, "device_oom", phase="build"),
    _fault("MemoryError of rank 0 in the batches", OOM_HOST, "memory_error", rank=0, phase="batch", step=2),
    _fault("allocator failure by RLIMIT_DATA", OOM_HOST, "allocator", step=2, says="can't allocate memory"),
    _fault("kernel kill for memory", OOM_HOST, "kernel_kills", step=2, says="killed by the kernel"),
    _fault(
        "budget passed where the allocation stops",
        OOM_DEVICE,
        "none",
        request={"on_budget": "raise", "memory_budget_bytes": 20_000},
        rank=0,
    ),
    _fault("budget passed, on record", OOM_DEVICE, "none", request={"memory_budget_bytes": 20_000}, rank=0),
    # --- processes that die ---
    _fault("SIGKILL in forward, once", "COMPLETED", "sigkill", step=4, once=True, launches=2),
    _fault("SIGKILL in forward, always", LOST, "sigkill", step=4, launches=2, says="without a word"),
    _fault("SIGKILL of rank 0 in backward", "COMPLETED", "sigkill", rank=0, phase="backward", once=True, launches=2),
    _fault("SIGKILL while the model is built", "COMPLETED", "sigkill", phase="build", once=True, launches=2),
    _fault("SIGKILL in the optimizer step", "COMPLETED", "sigkill", phase="step", step=3, once=True, launches=2),
    _fault("os._exit in forward", LOST, "os_exit", step=3, launches=2),
    _fault("SIGSEGV, once", "COMPLETED", "sigsegv", step=3, once=True, launches=2),
    _fault("SIGSEGV, twice", USER, "sigsegv", step=3, launches=2, says="SIGSEGV"),
    _fault("SIGABRT, twice", USER, "sigabrt", phase="backward", launches=2, says="SIGABRT"),
    _fault("both ranks killed", LOST, "sigkill", rank=-1, step=2, launches=2),
    # --- hangs ---
    _fault("endless sleep in forward", HUNG, "sleep", step=5),
    _fault("endless sleep in the data loader", HUNG, "sleep", phase="batch", step=4),
    _fault("endless sleep while the model is built", HUNG, "sleep", phase="build", rank=0),
    _fault("endless loop in backward", HUNG, "spin", phase="backward", step=2),
    _fault("a message that never comes", HUNG, "recv", step=3),
    _fault("a rank that ignores SIGTERM", HUNG, "ignore_sigterm", step=3),
    _fault("a rank without its watchdog", HUNG, "no_watchdog", step=3),
    # --- numbers ---
    _fault("the loss is nan on one rank", "FAILED numerics", "nan", step=4, says="not finite"),
    _fault("the loss is nan from the first step", "FAILED numerics", "nan", rank=-1, says="not finite"),
    _fault("an infinite gradient, one step skipped", "COMPLETED", "overflow_once", step=4, rank=-1, precision="fp16"),
    _fault(
        "all steps skipped",
        "FAILED numerics",
        "overflow_always",
        rank=-1,
        precision="fp16",
        says="loss scale already at minimum",
    ),
    # --- the user's code and config ---
    _fault("exception in the factory on one rank", USER, "value_error", phase="build", says="label is out of range"),
    _fault("exception in the factory on rank 0", USER, "value_error", phase="build", rank=0),
    _fault("exception in forward", USER, "value_error", step=6),
    _fault("exception in backward on all ranks", USER, "value_error", phase="backward", rank=-1),
    _fault("exception in the batches", USER, "value_error", phase="batch", step=3, rank=0),
    _fault("RecursionError in forward", USER, "recursion", step=2),
    _fault("sys.exit in forward", USER, "exit", step=2, says="SystemExit"),
    _fault("a factory that returns numbers", "FAILED config", "wrong_type", rank=-1, says="no torch module"),
    _fault("fewer batches on rank 1", "COMPLETED", "uneven", shows="cycled_data"),
    _fault(
        "CheckpointError at stage 3",
        "FAILED incompatible",
        "checkpoint_error",
        phase="backward",
        rank=-1,
        zero_stage=3,
    ),
    _fault("disk full on a worker's node", LOST, "disk_full", step=2, launches=2, says="No space left"),
)
