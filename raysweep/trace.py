"""What is asked of a fake engine trace, and what one rank's trace says: bytes by phase, collectives, guessed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysweep.allocations import AllocationLog
from raysweep.trial import LaunchRequest

PHASES = ("forward", "backward", "step")
"""Phases of an optimizer step, in order, as the worker's memory pass names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One rank of one candidate, to be traced."""

    request: LaunchRequest
    rank: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.request.workload.world_size, self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The calls of one collective in one optimizer step of one rank."""

    name: str
    """c10d's name, e.g. `allreduce_`."""
    count: int
    size_bytes: int
    """Bytes of the larger side (whole tensors gathered or scattered), summed over the calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A number that the trace had to make up, because nothing was computed."""

    operator: str
    place: str
    """File, line and function of the nearest code that is not torch's."""
    value: str
    count: int
    expected: bool
    """Asked for by DeepSpeed, an optimizer or ourselves, where the answer is known not to matter; else a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank of a candidate holds, by the worker's own definitions (`raysweep.worker.meter.weigh`)."""

    rank: int
    build_peak_bytes: int = 0
    phase_peaks_bytes: Mapping[str, int] = field(default_factory=dict)
    """Phase of a steady step -> its peak."""
    phase_kinds_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Phase -> kind -> bytes alive at the phase's peak; they add up to it."""
    resting_bytes: int = 0
    workspace_bytes: int = 0
    """Largest copy that the backend makes in threads of its own, which no count of tensors sees; beside the peaks."""
    collectives: tuple[Collective, ...] = ()
    """Of one steady optimizer step."""
    stand_ins: tuple[StandIn, ...] = ()
    allocations: AllocationLog = AllocationLog()
    """Of the last step."""
    ranks_of_a_kind: tuple[int, ...] = (0,)
    """One rank of each kind: those whose shares differ in the bytes that they keep, the fullest first."""
    trace_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of the tracing process."""
    resident_bytes: int = 0
    """Largest resident size of the tracing process."""
    error: str = ""
    """Why it could not be traced; all figures are 0 then."""
    from_user_code: bool = False
    """The error is one that a real run would meet, too, e.g. a factory that raises."""

    @property
    def peak_bytes(self) -> int:
        """The largest phase."""
        return max(self.phase_peaks_bytes.values(), default=0)

    @property
    def warnings(self) -> tuple[StandIn, ...]:
        """Made-up numbers that may have led the model's own code another way than in a real run."""
        return tuple(stand_in for stand_in in self.stand_ins if not stand_in.expected)
