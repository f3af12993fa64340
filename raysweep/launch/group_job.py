"""A running worker group and the candidate on its way through it, as the broker keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysweep.trial import RankFailure


@dataclass(slots=True)
class Group:
    """A running worker group: all ranks of one generation."""

    generation: str
    started_at: str
    ranks: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """rank -> facts: pid, node, node_id, log_path."""
    idle: set[int] = field(default_factory=set)
    """Ranks that have asked for work since they finished their last."""
    handed_out: int = 0
    key: Any = None
    """What its candidates have in common; another key needs a fresh group."""


@dataclass(slots=True)
class Job:
    """A candidate on its way through a group."""

    sequence: int
    request: Mapping[str, Any]
    deadline_s: float
    submitted_at: float
    group_key: Any
    generation: str = ""
    position_in_group: int = 0
    handed_out_at: float | None = None
    first_failure_at: float | None = None
    taken: set[int] = field(default_factory=set)
    reports: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[int, RankFailure] = field(default_factory=dict)
    ranks: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    finished: bool = False


def was_told_to_leave(failure: RankFailure) -> bool:
    """Whether a rank ended because the broker asked for it."""
    return kind_of(failure) == "GroupLeaves"


def kind_of(failure: RankFailure) -> str:
    """The class of a rank's error, without its module."""
    return failure.type_names[0].rpartition(".")[2] if failure.type_names else "unknown error"
