"""The map of the space: a grid a stage, interval by micro-batch, with speed as colour and the wall of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from raysweep.page.facts import ReportFacts
from raysweep.results.records import TrialRecord
from raysweep.results.worth import search_rate
from raysweep.trial import TrialStatus

SHADES = 9
WORDS = {
    TrialStatus.COMPLETED: "",
    TrialStatus.OOM: "OOM",
    TrialStatus.PRUNED: "pruned",
    TrialStatus.SKIPPED: "skipped",
    TrialStatus.FAILED: "failed",
    TrialStatus.STOPPED: "stopped",
    TrialStatus.TIMED_OUT: "timed out",
}
PAST_THE_WALL = (TrialStatus.OOM, TrialStatus.PRUNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCell:
    """The best candidate at one place, or why there is none."""

    text: str
    kind: str
    """CSS classes: q0 (slow) to q8 (fast), wall, none, and `best` for the winner."""
    candidate_id: str = ""
    is_at_the_wall: bool = False
    """Past it, where the place to its left is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMap:
    """One stage's grid."""

    zero_stage: int
    micro_batches: Sequence[int]
    rows: Sequence[tuple[int, Sequence[MapCell]]]
    """Interval, and its cells by micro-batch."""


def stage_maps(facts: ReportFacts) -> list[StageMap]:
    """A grid for each stage of the space; further axes are folded into the best of each place."""
    places: dict[tuple[int, int, int], list[TrialRecord]] = defaultdict(list)
    for record in facts.records:
        key = (record.zero_stage, record.activation_checkpoint_interval, record.micro_batch_size_per_gpu)
        places[key].append(record)
    rates = [search_rate(record) for record in facts.completed]
    span = (min(rates, default=0.0), max(rates, default=0.0))
    stages, intervals, micro_batches = (sorted({key[axis] for key in places}) for axis in range(3))
    return [
        StageMap(
            zero_stage=stage,
            micro_batches=micro_batches,
            rows=[
                (interval, _row([places.get((stage, interval, each), []) for each in micro_batches], facts, span))
                for interval in intervals
            ],
        )
        for stage in stages
    ]


def _row(places: Sequence[Sequence[TrialRecord]], facts: ReportFacts, span: tuple[float, float]) -> list[MapCell]:
    cells: list[MapCell] = []
    for place in places:
        cells.append(_cell(place, facts, span, after=cells[-1] if cells else None))
    return cells


def _cell(
    place: Sequence[TrialRecord], facts: ReportFacts, span: tuple[float, float], *, after: MapCell | None
) -> MapCell:
    if not place:
        return MapCell(text="", kind="none")
    completed = [record for record in place if record.status is TrialStatus.COMPLETED]
    if completed:
        winner = [record for record in completed if record.candidate_id == facts.selection.winner]
        best = winner[0] if winner else max(completed, key=search_rate)
        rate = search_rate(best)
        shade = f"q{_shade(rate, span)}"
        return MapCell(
            text=f"{rate:#.4g}".rstrip("."), kind=f"{shade} best" if winner else shade, candidate_id=best.candidate_id
        )
    too_large = [record for record in place if record.status in PAST_THE_WALL]
    shown = (too_large or list(place))[0]
    return MapCell(
        text=WORDS[shown.status],
        kind="wall" if too_large else "none",
        candidate_id=shown.candidate_id,
        is_at_the_wall=bool(too_large) and (after is None or after.kind != "wall"),
    )


def _shade(rate: float, span: tuple[float, float]) -> int:
    low, high = span
    return SHADES - 1 if high <= low else min(SHADES - 1, int((rate - low) / (high - low) * SHADES))
