"""How a launch ended: a case for each row of the table, and which rank decides."""

from __future__ import annotations

import pytest

from raysweep.outcome import (
    DEADLINE_PASSED,
    FATAL_SIGNAL,
    KILLED_FOR_MEMORY,
    PROCESS_DIED,
    Outcome,
    judge,
    may_run_again,
)
from raysweep.trial import FailureKind, MemoryKind, RankFailure, TrialStatus

RUNTIME = ("builtins.RuntimeError", "builtins.Exception")
ACTOR_DIED = ("ray.exceptions.ActorDiedError", "ray.exceptions.RayActorError", "ray.exceptions.RayError")


def _failure(*type_names: str, message: str = "it broke", rank: int = 0) -> RankFailure:
    return RankFailure(rank=rank, node=f"n{rank}", type_names=type_names, message=message)


@pytest.mark.parametrize(
    ("type_names", "message", "memory"),
    [
        (("raysweep.errors.OutOfMemory",), "out of memory in backward", MemoryKind.DEVICE),
        (("torch.OutOfMemoryError", *RUNTIME), "CUDA out of memory. Tried to allocate 2.00 GiB", MemoryKind.DEVICE),
        (("builtins.MemoryError",), "", MemoryKind.HOST),
        (("ray.exceptions.OutOfMemoryError", "ray.exceptions.RayError"), "killed", MemoryKind.HOST),
        ((KILLED_FOR_MEMORY, PROCESS_DIED, *ACTOR_DIED), "killed by the kernel", MemoryKind.HOST),
        (RUNTIME, "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes", MemoryKind.HOST),
        (RUNTIME, "CUDA out of memory. Tried to allocate 2.00 GiB", MemoryKind.DEVICE),
        (RUNTIME, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", MemoryKind.DEVICE),
    ],
)
def test_out_of_memory_is_told_from_other_errors(type_names: tuple[str, ...], message: str, memory: MemoryKind) -> None:
    outcome = judge([_failure(*type_names, message=message)])
    assert (outcome.status, outcome.memory_kind, outcome.failure_kind) == (TrialStatus.OOM, memory, None)


@pytest.mark.parametrize(
    ("type_names", "message", "kind"),
    [
        ((DEADLINE_PASSED, *ACTOR_DIED), "still busy", FailureKind.HANG),
        (("raysweep.errors.NumericsError",), "the loss is nan", FailureKind.NUMERICS),
        (
            ("builtins.Exception",),
            "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            FailureKind.NUMERICS,
        ),
        (("raysweep.errors.ConfigError",), "model.factory: must return", FailureKind.CONFIG),
        (("raysweep.errors.CheckpointMismatch",), "4 blocks", FailureKind.INCOMPATIBLE),
        (("torch.utils.checkpoint.CheckpointError", *RUNTIME), "metadata differs", FailureKind.INCOMPATIBLE),
        (("deepspeed.runtime.config.DeepSpeedConfigError",), "bad", FailureKind.CONFIG),
        (("pydantic_core._pydantic_core.ValidationError", "builtins.ValueError"), "bad", FailureKind.CONFIG),
        ((PROCESS_DIED, *ACTOR_DIED), "The actor died", FailureKind.INFRASTRUCTURE),
        ((FATAL_SIGNAL, PROCESS_DIED, *ACTOR_DIED), "ended by SIGSEGV", FailureKind.INFRASTRUCTURE),
        (ACTOR_DIED, "The actor died", FailureKind.INFRASTRUCTURE),
        (("builtins.OSError",), "[Errno 28] No space left on device", FailureKind.INFRASTRUCTURE),
        (("torch.distributed.DistBackendError", "torch.distributed.DistError", *RUNTIME), "NCCL", "infrastructure"),
        (RUNTIME, "[../third_party/gloo/gloo/transport/tcp/pair.cc:534]", FailureKind.INFRASTRUCTURE),
        (RUNTIME, "Connection closed by peer [10.0.0.1]:4242", FailureKind.INFRASTRUCTURE),
        (RUNTIME, "shapes cannot be multiplied", FailureKind.USER_CODE),
        (("builtins.ZeroDivisionError",), "division by zero", FailureKind.USER_CODE),
        ((), "", FailureKind.USER_CODE),
    ],
)
def test_failures_by_kind(type_names: tuple[str, ...], message: str, kind: FailureKind) -> None:
    outcome = judge([_failure(*type_names, message=message)])
    assert (outcome.status, outcome.memory_kind) == (TrialStatus.FAILED, None)
    assert outcome.failure_kind == kind


def test_a_message_alone_does_not_make_an_out_of_memory() -> None:
    outcome = judge([_failure("builtins.ValueError", message="CUDA out of memory")])
    assert outcome.failure_kind is FailureKind.USER_CODE


OOM = _failure("raysweep.errors.OutOfMemory", rank=3)
OWN = _failure("builtins.ValueError", rank=2)
DEAD = _failure(PROCESS_DIED, *ACTOR_DIED, rank=1)
PEER_GONE = _failure(*RUNTIME, message="Connection closed by peer", rank=0)


@pytest.mark.parametrize(
    ("failures", "rank"),
    [([PEER_GONE, DEAD, OWN, OOM], 3), ([PEER_GONE, DEAD, OWN], 2), ([PEER_GONE, DEAD], 1), ([PEER_GONE], 0)],
)
def test_the_rank_closest_to_the_cause_decides(failures: list[RankFailure], rank: int) -> None:
    outcome = judge(failures)
    assert outcome.failures[0].rank == rank
    assert outcome.reason.startswith(f"rank {rank} on n{rank}: ")
    assert len(outcome.failures) == len(failures)


def test_of_an_error_that_all_raise_the_rank_where_it_began_is_named() -> None:
    alike = [
        RankFailure(rank=rank, type_names=("raysweep.errors.NumericsError",), message="nan", data={"rank": 1})
        for rank in (0, 1)
    ]
    assert judge(alike).failures[0].rank == 1


def test_the_reason_is_one_line() -> None:
    reason = judge([_failure("builtins.ValueError", message="first\nsecond")]).reason
    assert reason == "rank 0 on n0: ValueError: first"


@pytest.mark.parametrize(
    ("kind", "launches", "again"),
    [(FailureKind.INFRASTRUCTURE, 1, True), (FailureKind.INFRASTRUCTURE, 2, False), (FailureKind.USER_CODE, 1, False)],
)
def test_only_infrastructure_failures_run_again_and_once(kind: FailureKind, launches: int, again: bool) -> None:
    outcome = Outcome(status=TrialStatus.FAILED, failure_kind=kind)
    assert may_run_again(outcome, launches=launches, first_in_group=False, device="cuda") is again


@pytest.mark.parametrize(
    ("device", "first_in_group", "again"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_an_out_of_memory_runs_again_only_where_others_ran_before_it_on_cuda(
    device: str, first_in_group: bool, again: bool
) -> None:
    outcome = Outcome(status=TrialStatus.OOM, memory_kind=MemoryKind.DEVICE)
    assert may_run_again(outcome, launches=1, first_in_group=first_in_group, device=device) is again
