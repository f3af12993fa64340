"""Decides from a rank's error how a launch ended, by exception type first and by message last: one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raysweep.trial import FailureKind, MemoryKind, RankFailure, TrialStatus

DEADLINE_PASSED = "raysweep.launch.DeadlinePassed"
"""Type name that the broker gives to a rank which was still busy when its deadline passed."""
PROCESS_DIED = "raysweep.launch.ProcessDied"
"""Type name that the broker gives to a rank whose process ended without an exception."""
FATAL_SIGNAL = "raysweep.launch.FatalSignal"
"""Type name of such a rank that ended by a signal of its own making, e.g. SIGSEGV."""
KILLED_FOR_MEMORY = "raysweep.launch.KilledForMemory"
"""Type name of such a rank that the kernel killed because the node had no memory left."""
NODE_LOST = "raysweep.launch.NodeLost"
"""Type name of such a rank whose node does not answer any more; also in place of a passed deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended, with the failing rank first."""

    status: TrialStatus
    failure_kind: FailureKind | None = None
    memory_kind: MemoryKind | None = None
    reason: str = ""
    failures: tuple[RankFailure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A line of the table: what it matches, what that means, and how close to a root cause it is (0 = closest)."""

    type_name: str
    message_part: str = ""
    status: TrialStatus = TrialStatus.FAILED
    failure_kind: FailureKind | None = None
    memory_kind: MemoryKind | None = None
    distance: int = 1

    def matches(self, failure: RankFailure) -> bool:
        return self.type_name in failure.type_names and self.message_part in failure.message


COLLATERAL = 3
"""Distance of the errors that a rank gets because another one is gone."""
_OOM_DEVICE = {"status": TrialStatus.OOM, "memory_kind": MemoryKind.DEVICE, "distance": 0}
_OOM_HOST = {"status": TrialStatus.OOM, "memory_kind": MemoryKind.HOST, "distance": 0}
_row: Callable[..., _Row] = _Row

# The first row that matches decides. A message is looked at only where the type is too wide to tell.
_TABLE: tuple[_Row, ...] = (
    _row(type_name="raysweep.errors.OutOfMemory", **_OOM_DEVICE),
    _row(type_name="torch.OutOfMemoryError", **_OOM_DEVICE),
    _row(type_name="builtins.MemoryError", **_OOM_HOST),
    _row(type_name="ray.exceptions.OutOfMemoryError", **_OOM_HOST),
    _row(type_name=KILLED_FOR_MEMORY, **_OOM_HOST),
    _row(type_name="builtins.RuntimeError", message_part="DefaultCPUAllocator: can't allocate memory", **_OOM_HOST),
    _row(type_name="builtins.RuntimeError", message_part="CUDA out of memory", **_OOM_DEVICE),
    _row(type_name="builtins.RuntimeError", message_part="CUBLAS_STATUS_ALLOC_FAILED", **_OOM_DEVICE),
    _row(type_name=NODE_LOST, failure_kind=FailureKind.INFRASTRUCTURE),
    _row(type_name=DEADLINE_PASSED, failure_kind=FailureKind.HANG, distance=2),
    _row(type_name="raysweep.errors.NumericsError", failure_kind=FailureKind.NUMERICS),
    _row(  # DeepSpeed's own words when it has halved the scale as often as it may
        type_name="builtins.Exception",
        message_part="loss scale already at minimum",
        failure_kind=FailureKind.NUMERICS,
    ),
    _row(type_name="raysweep.errors.CheckpointMismatch", failure_kind=FailureKind.INCOMPATIBLE),
    _row(type_name="torch.utils.checkpoint.CheckpointError", failure_kind=FailureKind.INCOMPATIBLE),
    _row(type_name="raysweep.errors.ConfigError", failure_kind=FailureKind.CONFIG),
    _row(type_name="deepspeed.runtime.config.DeepSpeedConfigError", failure_kind=FailureKind.CONFIG),
    _row(type_name="pydantic_core._pydantic_core.ValidationError", failure_kind=FailureKind.CONFIG),
    _row(
        type_name="builtins.OSError",
        message_part="No space left on device",
        failure_kind=FailureKind.INFRASTRUCTURE,
        distance=2,
    ),
    _row(type_name=PROCESS_DIED, failure_kind=FailureKind.INFRASTRUCTURE, distance=2),
    _row(type_name="ray.exceptions.RayError", failure_kind=FailureKind.INFRASTRUCTURE, distance=2),
    _row(type_name="torch.distributed.DistError", failure_kind=FailureKind.INFRASTRUCTURE, distance=COLLATERAL),
    # gloo raises plain RuntimeErrors where a peer is gone: the mark is the source file or the words of its transport.
    _row(
        type_name="builtins.RuntimeError",
        message_part="gloo/",
        failure_kind=FailureKind.INFRASTRUCTURE,
        distance=COLLATERAL,
    ),
    _row(
        type_name="builtins.RuntimeError",
        message_part="Connection closed by peer",
        failure_kind=FailureKind.INFRASTRUCTURE,
        distance=COLLATERAL,
    ),
)
_ANYTHING_ELSE = _Row(type_name="builtins.BaseException", failure_kind=FailureKind.USER_CODE)


def judge(failures: Sequence[RankFailure]) -> Outcome:
    """The outcome of a launch in which at least one rank failed.

    The rank closest to a root cause decides: out of memory in any rank before all else, then an error of its own,
    then a deadline or a dead process, then the errors that ranks get when a peer is gone. Of an error that all ranks
    raise alike, the rank where it began is named.
    """
    assert failures, "judge is asked only after a failure"
    rows = {failure.rank: _row_of(failure) for failure in failures}
    ordered = sorted(
        failures, key=lambda failure: (rows[failure.rank].distance, _began_elsewhere(failure), failure.rank)
    )
    first = ordered[0]
    row = rows[first.rank]
    return Outcome(
        status=row.status,
        failure_kind=row.failure_kind,
        memory_kind=row.memory_kind,
        reason=_sentence(first),
        failures=tuple(ordered),
    )


def _began_elsewhere(failure: RankFailure) -> bool:
    """Whether an error that all ranks raise alike says that it began on another one."""
    return bool(failure.data.get("rank", failure.rank) != failure.rank)


def is_collateral(failure: RankFailure) -> bool:
    """Whether a rank's error only says that another rank is gone."""
    return _row_of(failure).distance == COLLATERAL


def _row_of(failure: RankFailure) -> _Row:
    return next((row for row in _TABLE if row.matches(failure)), _ANYTHING_ELSE)


def _sentence(failure: RankFailure) -> str:
    place = f"rank {failure.rank}" + (f" on {failure.node}" if failure.node else "")
    kind = failure.type_names[0].rpartition(".")[2] if failure.type_names else "error"
    first_line = failure.message.strip().splitlines()[0] if failure.message.strip() else "no message"
    return f"{place}: {kind}: {first_line}"


def may_run_again(outcome: Outcome, *, launches: int, first_in_group: bool, device: str) -> bool:
    """Whether a failed candidate gets a second launch, in a fresh group.

    Infrastructure failures do, once. On CUDA an out-of-memory does when other candidates ran in the same process
    before it, because what they left may be the cause; on CPU the count of live bytes is exact, so it stands.
    """
    if launches > 1:
        return False
    if outcome.failure_kind is FailureKind.INFRASTRUCTURE:
        return True
    return outcome.status is TrialStatus.OOM and device == "cuda" and not first_in_group
