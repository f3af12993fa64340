"""Writes down the allocations of a traced step as they happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raysweep.allocations import AllocationLog


class StepLog:
    """Collects an `AllocationLog`; storages are known by a key that is theirs while they live."""

    def __init__(self) -> None:
        self._events: list[int] = []
        self._kinds: list[int] = []
        self._names: dict[str, int] = {}
        self._alive: dict[int, int] = {}
        self._phase_begins: list[tuple[str, int]] = []

    def allocate(self, key: int, size_bytes: int, kind: str) -> None:
        """A storage came to life."""
        self._events.append(size_bytes)
        self._kinds.append(self._names.setdefault(kind, len(self._names)))
        self._alive[key] = len(self._kinds)

    def free(self, key: int) -> None:
        """It died."""
        self._events.append(-self._alive.pop(key))

    def begin_phase(self, phase: str) -> None:
        """What comes belongs to a phase."""
        self._phase_begins.append((phase, len(self._events)))

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Inside, what is born and dies again is left out: a batch is made of as many pieces as it has samples."""
        first_event, first_kind = len(self._events), len(self._kinds)
        yield
        events, kinds = self._events[first_event:], self._kinds[first_kind:]
        gone = {-event for event in events if event < -first_kind}
        del self._events[first_event:], self._kinds[first_kind:]
        numbers: dict[int, int] = {}
        born = first_kind
        for event in events:
            if event > 0:
                born += 1
                if born in gone:
                    continue
                self._kinds.append(kinds[born - first_kind - 1])
                numbers[born] = len(self._kinds)
            elif -event in gone:
                continue
            self._events.append(event)
        self._alive = {key: numbers.get(number, number) for key, number in self._alive.items()}

    def closed(self) -> AllocationLog:
        """All so far."""
        return AllocationLog(
            events=tuple(self._events),
            kinds=tuple(self._kinds),
            kind_names=tuple(self._names),
            phase_begins=tuple(self._phase_begins),
        )
