"""`raysweep compare`: prints what moved between two sweeps beyond the noise."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from raysweep.results.compare import Comparison, Move, compare, differences
from raysweep.results.export import read_selection
from raysweep.results.journal import read_journal
from raysweep.results.paths import ResultsPaths
from raysweep.results.records import TrialRecord
from raysweep.results.select import Selection
from raysweep.results.store import load_trials
from raysweep.tables import aligned
from raysweep.units import format_bytes

MOST_NAMED = 20


def compare_sweeps(first: str, second: str) -> None:
    """Print what differs around the two sweeps, their winners, and the candidates that moved.

    Raises:
        RaysweepError: when no sweep has written in one of the folders.
    """
    one, other = load_trials(first), load_trials(second)
    comparison = compare(one, other)
    parts = [
        _around(_conditions(first, one), _conditions(second, other)),
        _winners((first, read_selection(first)), (second, read_selection(second))),
        *_rates(comparison),
        *_changes(comparison),
    ]
    typer.echo("\n\n".join(parts))


def _conditions(results: str, records: Sequence[TrialRecord]) -> dict[str, Any]:
    """What a sweep's figures depend on; without a journal at hand, what the records know of it."""
    versions = {"versions": json.loads(records[0].versions) if records else {}}
    budget = {"memory_budget_bytes": records[0].memory_budget_bytes if records else None}
    journal = ResultsPaths(results).journal
    workload = {"workload": read_journal(journal).sweep.workload.described()} if Path(journal).is_file() else {}
    return versions | budget | workload


def _around(first: dict[str, Any], second: dict[str, Any]) -> str:
    shared = {key: second[key] for key in second if key in first}
    found = differences({key: first[key] for key in shared}, shared)
    if not found:
        return "Workload, budget and versions are the same." if "workload" in shared else "Versions are the same."
    return "What differs around them:\n" + "\n".join(f"  {key}: {one} -> {other}" for key, one, other in found)


def _winners(*sweeps: tuple[str, Selection | None]) -> str:
    return "\n".join(f"{name}: {_winner(selection)}" for name, selection in sweeps)


def _winner(selection: Selection | None) -> str:
    if selection is None or selection.winner is None:
        return "no winner"
    low, high = selection.samples_per_s_low, selection.samples_per_s_high
    interval = f" (95 % interval {low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    state = "" if selection.confirmed else ", not confirmed"
    return f"{selection.winner}, {selection.samples_per_s:.2f} samples/s{interval}{state}"


def _rates(comparison: Comparison) -> list[str]:
    if comparison.drift is None:
        return ["No candidate was measured in both."]
    count = len(comparison.moves)
    told = f"{count} measured in both; the median rate moved by {comparison.drift * 100:+.1f} %"
    if comparison.spread is None:
        told += ", and they are too few to tell noise from their own spread: each one's interval decides"
    else:
        told += f", single ones differ from that by {math.expm1(comparison.spread) * 100:.1f} % (standard deviation)"
    moved = [move for move in comparison.moves if move.beyond_noise]
    if not moved:
        return [f"{told}.", "No rate moved beyond the noise."]
    moved.sort(key=lambda move: -abs(move.log_ratio.centre))
    table = aligned(
        ["candidate", "samples/s", "", "moved", "95 % interval", "figures"],
        [_cells(move) for move in moved[:MOST_NAMED]],
    )
    left_out = f"\n... and {len(moved) - MOST_NAMED} more" if len(moved) > MOST_NAMED else ""
    return [f"{told}.", f"Moved beyond the noise: {len(moved)}\n{table}{left_out}"]


def _cells(move: Move) -> list[str]:
    before, after, ratio = move.before, move.after, move.log_ratio
    rates = (
        (before.confirmed_samples_per_s, after.confirmed_samples_per_s)
        if move.confirmed
        else (before.samples_per_s, after.samples_per_s)
    )
    return [
        before.candidate_id,
        f"{rates[0]:.2f}",
        f"-> {rates[1]:.2f}",
        f"{math.expm1(ratio.centre) * 100:+.1f} %",
        f"{math.expm1(ratio.low) * 100:+.1f} to {math.expm1(ratio.high) * 100:+.1f} %",
        "confirmed" if move.confirmed else "search",
    ]


def _changes(comparison: Comparison) -> list[str]:
    ended = [(one, f"{one.status} -> {other.status}") for one, other in comparison.ended_otherwise]
    peaks = [
        (one, f"{format_bytes(one.peak_memory_bytes)} -> {format_bytes(other.peak_memory_bytes)}")
        for one, other in comparison.peaks_moved
    ]
    parts = [_listed("Ended otherwise", ended), _listed("Peak memory moved by more than 1 %", peaks)]
    for place, names in (("first", comparison.only_in_first), ("second", comparison.only_in_second)):
        parts.append(f"Only in the {place}: {_named(names)}" if names else "")
    return [part for part in parts if part]


def _listed(heading: str, changes: Sequence[tuple[TrialRecord, str]]) -> str:
    if not changes:
        return ""
    lines = [f"  {record.candidate_id}: {change}" for record, change in changes[:MOST_NAMED]]
    left_out = [f"  ... and {len(changes) - MOST_NAMED} more"] if len(changes) > MOST_NAMED else []
    return "\n".join([f"{heading}: {len(changes)}", *lines, *left_out])


def _named(names: Sequence[str]) -> str:
    left_out = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + left_out
