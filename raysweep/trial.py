"""How a launch and a candidate ended, and the records of both: one row a launch, one row a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.measurement import Figures
from raysweep.objective import Objective
from raysweep.probe import Probe
from raysweep.race import Race
from raysweep.workload import Workload


class TrialStatus(StrEnum):
    """How a candidate ended."""

    PRUNED = "PRUNED"
    """Predicted not to fit; never launched."""
    SKIPPED = "SKIPPED"
    """May fit, never launched; `SkipRule` says why."""
    COMPLETED = "COMPLETED"
    OOM = "OOM"
    STOPPED = "STOPPED"
    """Stopped after a few steps, because it was far behind the best; it has figures, of a short window."""
    TIMED_OUT = "TIMED_OUT"
    FAILED = "FAILED"
    """`FailureKind` says of what."""


class SkipRule(StrEnum):
    """Why a candidate that may fit was never launched."""

    SEARCH_STOPPED = "search_stopped"
    THROUGHPUT_BOUND = "throughput_bound"
    DOMINATED = "dominated"
    NO_LEGAL_BATCH = "no_legal_batch"
    PRECISION_UNSUPPORTED = "precision_unsupported"
    DATA_TOO_SMALL = "data_too_small"


class FailureKind(StrEnum):
    """What a FAILED candidate died of."""

    HANG = "hang"
    NUMERICS = "numerics"
    INCOMPATIBLE = "incompatible"
    CONFIG = "config"
    INFRASTRUCTURE = "infrastructure"
    USER_CODE = "user_code"


class MemoryKind(StrEnum):
    """Whose memory ran out."""

    DEVICE = "device"
    HOST = "host"


class Phase(StrEnum):
    """Why a launch was made."""

    SEARCH = "search"
    CONFIRM = "confirm"
    AUDIT = "audit"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """All that a worker group needs to measure one candidate once."""

    candidate: Candidate
    workload: Workload
    ds_config: Mapping[str, Any]
    window: MeasurementWindow
    phase: Phase = Phase.SEARCH
    round: int = 0
    """Round of the confirmation, from 1; 0 outside it."""
    memory_budget_bytes: int | None = None
    on_budget: str = "record"
    """On CPU: `record` lets the memory pass end and notes the true peak; `raise` stops at the allocation, like CUDA."""
    deadline_s: float = 300.0
    race: Race | None = None
    """What to compare with while it runs; None where it is measured for its own sake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """An error of one rank, as it left the process: kept apart from what other ranks suffered because of it."""

    rank: int
    node: str = ""
    type_names: tuple[str, ...] = ()
    """Qualified names of the exception's class and its bases, most specific first."""
    message: str = ""
    log_path: str = ""
    exit_signal: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """What one of our own errors carried, e.g. `peak_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One launch: one row of `measurements.parquet`."""

    candidate_id: str
    phase: Phase
    round: int
    status: TrialStatus
    failure_kind: FailureKind | None = None
    memory_kind: MemoryKind | None = None
    reason: str = ""
    failures: tuple[RankFailure, ...] = ()
    """First the rank that failed, then those that it took along."""
    figures: Figures | None = None
    peak_memory_bytes: int | None = None
    """Also known for most OOMs, where `figures` is None."""
    group_id: str = ""
    position_in_group: int = 0
    ds_config_sha256: str = ""
    started_at: str = ""
    """UTC, ISO 8601."""
    wall_s: float = 0.0
    waited_s: float = 0.0
    """The part of `wall_s` before all ranks of a group were there to take the candidate."""
    worker_pids: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    log_paths: tuple[str, ...] = ()
    probe: Probe | None = None
    """The micro-benchmark of the worker group, with the first of its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnd:
    """One worker group, after its end."""

    group_id: str
    reason: str
    started_at: str
    ended_at: str
    worker_pids: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What the plan says of one candidate; the plan has a row for every candidate of the space."""

    candidate: Candidate
    status: TrialStatus | None = None
    """PRUNED or SKIPPED; None where the candidate is admitted."""
    skip_rule: SkipRule | None = None
    reason: str = ""
    estimated_memory_bytes: int | None = None
    estimated_peak_terms: Mapping[str, int] = field(default_factory=dict)
    """What the predicted peak is made of: term -> bytes."""
    estimated_sent_bytes_per_step: int | None = None
    """By one rank, for gradients and parameters."""
    world_size: int
    global_batch_size: int

    def __post_init__(self) -> None:
        assert self.status in (None, TrialStatus.PRUNED, TrialStatus.SKIPPED), self.status
        assert self.status is None or self.reason, "a candidate that is not admitted has a reason"
        assert (self.skip_rule is None) == (self.status is not TrialStatus.SKIPPED), self.skip_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStart:
    """What all rows of a sweep share, as written to the journal when a driver starts or resumes it."""

    sweep_sha256: str
    """Hash of the sweep file's values."""
    workload: Workload
    base_ds_config: Mapping[str, Any]
    """What each candidate's config is rendered over."""
    resources_per_worker: Mapping[str, float] = field(default_factory=dict)
    memory_budget_bytes: int | None
    allow_loss_difference: bool = False
    objective: Objective = field(default_factory=Objective)
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package name -> version, Python included."""
    started_at: str = ""
    """UTC, ISO 8601."""
    plan_rows: tuple[PlanRow, ...] = ()
