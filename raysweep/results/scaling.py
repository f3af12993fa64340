"""How speed grows with the number of workers, where a sweep has tried several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raysweep.results.records import TrialRecord, scaling_efficiencies
from raysweep.tables import aligned

HEADINGS = ("workers", "fastest in the search", "samples/s", "samples/s a worker", "efficiency")
MEANING = (
    "Efficiency: samples/s a worker, over those of the fastest with the fewest workers; one launch of the search each"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """The fastest completed candidate with one number of workers."""

    world_size: int
    candidate_id: str
    samples_per_s: float
    efficiency: float
    """Its samples/s a worker over those at the smallest number."""

    def cells(self) -> tuple[str, ...]:
        """In the order of the headings."""
        return (
            str(self.world_size),
            self.candidate_id,
            f"{self.samples_per_s:.2f}",
            f"{self.samples_per_s / self.world_size:.2f}",
            f"{self.efficiency:.0%}",
        )


def scaling(records: Iterable[TrialRecord]) -> list[ScalePoint]:
    """A point for each number of workers with which a candidate completed, ascending; empty where there is one only."""
    records = list(records)
    efficiencies = scaling_efficiencies(records)
    known = [each for each in records if each.candidate_id in efficiencies]
    fastest: dict[int, TrialRecord] = {}
    for record in sorted(known, key=lambda each: (each.world_size, each.samples_per_s or 0.0)):
        fastest[record.world_size] = record
    return [
        ScalePoint(
            world_size=world_size,
            candidate_id=record.candidate_id,
            samples_per_s=record.samples_per_s or 0.0,
            efficiency=efficiencies[record.candidate_id],
        )
        for world_size, record in fastest.items()
    ]


def render_scaling(records: Iterable[TrialRecord]) -> str:
    """The points as a table for a terminal; empty where all candidates have one number of workers."""
    points = scaling(records)
    return f"By the number of workers. {MEANING}:\n" + aligned(HEADINGS, [e.cells() for e in points]) if points else ""
