"""The allocations of one optimizer step in their order: replayed, and moved from two micro-batches to a third."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

HELD = "held"
"""Phase of what is alive before the step begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationLog:
    """What a step allocated and freed, after what was alive when it began."""

    events: tuple[int, ...] = ()
    """In order: n > 0 allocates n bytes; -i frees the i-th allocation, counted from 1."""
    kinds: tuple[int, ...] = ()
    """Of each allocation the index of its kind in `kind_names`."""
    kind_names: tuple[str, ...] = ()
    phase_begins: tuple[tuple[str, int], ...] = ()
    """Phase, and index of its first event, in order; a phase comes once for each micro-step."""

    def sizes_bytes(self) -> list[int]:
        """Bytes of each allocation."""
        return [event for event in self.events if event > 0]

    def parts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each phase with its events; first `HELD`, with what was alive before."""
        begins = ((HELD, 0), *self.phase_begins, ("", len(self.events)))
        for (phase, first), (_, end) in zip(begins[:-1], begins[1:], strict=True):
            yield phase, self.events[first:end]


def peak_terms(log: AllocationLog, *, left_out: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """Phase -> kind -> bytes at the phase's peak, where kinds in `left_out` do not count."""
    alive: Counter[str] = Counter()
    allocated: list[tuple[str, int]] = []
    total_bytes = 0
    peaks: dict[str, tuple[int, dict[str, int]]] = {}
    for phase, events in log.parts():
        best_bytes, best = peaks.get(phase, (-1, {}))
        if total_bytes > best_bytes:
            best_bytes, best = total_bytes, dict(alive)
        for event in events:
            if event > 0:
                kind = log.kind_names[log.kinds[len(allocated)]]
                size_bytes = 0 if kind in left_out else event
                allocated.append((kind, size_bytes))
            else:
                kind, freed_bytes = allocated[-event - 1]
                size_bytes = -freed_bytes
            alive[kind] += size_bytes
            total_bytes += size_bytes
            if total_bytes > best_bytes:
                best_bytes, best = total_bytes, dict(alive)
        peaks[phase] = (best_bytes, best)
    peaks.pop(HELD, None)
    return {phase: {kind: size for kind, size in terms.items() if size} for phase, (_, terms) in peaks.items()}


def are_alike(low: AllocationLog, high: AllocationLog, *, low_batch: int, high_batch: int) -> bool:
    """Whether two micro-batches allocate and free in the same order, each size fixed or in proportion to the batch.

    Then every micro-batch between them does the same, and its sizes are known: a size that grew otherwise, by the
    square of the batch or by a padded row, would be neither fixed nor in proportion.
    """
    if (low.kinds, low.phase_begins, len(low.events)) != (high.kinds, high.phase_begins, len(high.events)):
        return False
    return all(
        before == after or (before > 0 and after > 0 and before * high_batch == after * low_batch)
        for before, after in zip(low.events, high.events, strict=True)
    )


def between(low: AllocationLog, high: AllocationLog, *, low_batch: int, high_batch: int, batch: int) -> AllocationLog:
    """The log of a micro-batch between two whose logs are alike (`are_alike`)."""
    events = tuple(
        before if before == after else before + (after - before) * (batch - low_batch) // (high_batch - low_batch)
        for before, after in zip(low.events, high.events, strict=True)
    )
    return AllocationLog(events=events, kinds=low.kinds, kind_names=low.kind_names, phase_begins=low.phase_begins)
