"""`RaysweepError` and its few kinds: each carries data, pickles, and knows the exit code it ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

from raysweep.units import format_bytes


class RaysweepError(Exception):
    """Base of all errors that raysweep raises on purpose; its text is one clear message for a person.

    Subclasses are built from keyword arguments only, kept in `data`, so that an error survives a trip
    between processes.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, **data: Any) -> None:
        super().__init__(self.describe(data))
        self.data = data

    @staticmethod
    def describe(data: dict[str, Any]) -> str:
        """The message for a person."""
        return str(data["message"])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.data)


def _rebuild(kind: type[RaysweepError], data: dict[str, Any]) -> RaysweepError:
    return kind(**data)


class ConfigError(RaysweepError):
    """What the user wrote cannot be right: `key`, `rule`, and where known `value` and the `nearest` valid choice."""

    exit_code = 2

    @staticmethod
    def describe(data: dict[str, Any]) -> str:
        """`key: value: rule (nearest valid: ...)`."""
        value = f": {data['value']!r}" if "value" in data else ""
        nearest = f" (nearest valid: {data['nearest']})" if data.get("nearest") else ""
        return f"{data['key']}{value}: {data['rule']}{nearest}"


class NothingSucceeded(RaysweepError):
    """The sweep ended, or had to end, without one candidate that completed."""

    exit_code = 3


class GroupCannotStart(NothingSucceeded):
    """No worker group comes up, so the sweep stops instead of trying for ever. Data: `reason`."""

    @staticmethod
    def describe(data: dict[str, Any]) -> str:
        """The reason, as the last group gave it."""
        return f"no worker group can start: {data['reason']}"


class PreflightError(RaysweepError):
    """Something the sweep needs is not there; found before a candidate was launched."""

    exit_code = 4


class StorageError(RaysweepError):
    """The sweep cannot record what it measures, e.g. because the disk is full. Data: `path`, `reason`."""

    @staticmethod
    def describe(data: dict[str, Any]) -> str:
        """The file, the system's reason, and how to go on."""
        return (
            f"{data['path']} cannot be written: {data['reason']}. The sweep has stopped; what was measured before is "
            "kept. Make room, then go on with --resume"
        )


class OutOfMemory(RaysweepError):
    """A candidate went past its memory budget.

    Data: `phase` (build, forward, backward, step), `peak_bytes`, `budget_bytes`, `rank`; after whole steps also
    `recomputed_blocks`, and `collective` where every rank raised it alike.
    """

    @staticmethod
    def describe(data: dict[str, Any]) -> str:
        """One line with the phase and both sizes."""
        return (
            f"out of memory in {data['phase']}: peak of {format_bytes(data['peak_bytes'])} "
            f"is above the budget of {format_bytes(data['budget_bytes'])}"
        )


class NoSteps(RaysweepError):
    """The training loop ended before one optimizer step was measured. Data: `measured`, `wanted`."""

    @staticmethod
    def describe(data: dict[str, Any]) -> str:
        """`0 of 8 steps measured`."""
        return f"{data['measured']} of {data['wanted']} steps measured"


class NumericsError(RaysweepError):
    """The loss is not finite, or every step was skipped for overflow. Data: `message`, and the `rank` where it began
    where one can be named."""


class CheckpointMismatch(RaysweepError):
    """Blocks recomputed in a step differ from what the interval asks for. Data: `expected`, `counted`, `interval`."""

    @staticmethod
    def describe(data: dict[str, Any]) -> str:
        """Expected and counted blocks."""
        return (
            f"activation_checkpoint_interval {data['interval']} should recompute {data['expected']} "
            f"blocks a micro-step, {data['counted']} were counted"
        )


def nearest_name(name: str, choices: Iterable[str]) -> str | None:
    """The choice closest in spelling to `name`, or None where nothing is close."""
    found = difflib.get_close_matches(name, sorted(choices), n=1, cutoff=0.5)
    return found[0] if found else None
