"""Prunes grids whose peaks were measured, under many budgets: what is discarded wrongly, and what runs out of memory.

python benchmarks/pruning_audit.py                              # the runs that are kept with the tests, closed form
python benchmarks/pruning_audit.py RESULTS... --sweep FILE      # a sweep's results, with traces of its candidates, too

Every measured peak, less one byte and as it is, is a budget. A false discard is a candidate that is pruned and whose
peak is within the budget. Trials that run out of memory are counted as grid search would meet them, in a seeded random
order, an out-of-memory spreading to larger micro-batches of the same everything. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closed_form_error import MEASURED, candidate_of, workload_of

from raysweep.candidate import Candidate
from raysweep.dominance import needs_no_less_memory
from raysweep.ds_config import render
from raysweep.estimate.facts import with_facts
from raysweep.estimate.tracing import trace_sweep
from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.results.store import load_trials
from raysweep.sweep_file import Sweep, load_sweep

ORDERS = 5
"""Seeded orders of each budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A candidate with its measured peak and its prediction."""

    candidate: Candidate
    peak_bytes: int
    estimate: MemoryEstimate


def kept_grids() -> dict[str, list[Measured]]:
    """The runs of the tests by what they share: model, precision, workers, bucket."""
    grids: dict[str, list[Measured]] = {}
    keys = ("precision", "world_size", "blocks", "hidden", "vocab_size", "reduce_bucket_size")
    for run in json.loads(MEASURED.read_text())["runs"]:
        candidate, settings = candidate_of(run), ZeroSettings(reduce_bucket_size=run["reduce_bucket_size"])
        measured = Measured(
            candidate=candidate,
            peak_bytes=run["peak_memory_bytes"],
            estimate=estimate_memory(candidate, workload_of(run), settings),
        )
        grids.setdefault(" ".join(str(run[key]) for key in keys), []).append(measured)
    return grids


def grid_of(results: str, sweep: Sweep, traced: Mapping[str, MemoryEstimate]) -> list[Measured]:
    """Candidates of a sweep whose peak is known, by trace or, where there is none, by closed form."""
    grid = []
    for record in load_trials(results):
        candidate = next(
            (c for c, _ in _candidates(sweep) if c.candidate_id == record.candidate_id and record.peak_memory_bytes),
            None,
        )
        if candidate is None:
            continue
        own = sweep.workload.of(candidate)
        settings = ZeroSettings.from_ds_config(render(candidate, workload=own, base=sweep.base_ds_config))
        estimate = traced.get(record.candidate_id) or estimate_memory(candidate, own, settings)
        grid.append(Measured(candidate=candidate, peak_bytes=record.peak_memory_bytes or 0, estimate=estimate))
    return grid


def _candidates(sweep: Sweep) -> list[tuple[Candidate, bool]]:
    workload = sweep.workload
    found = sweep.space.candidates(global_batch_size=workload.global_batch_size, world_size=workload.world_size)
    return list(found)


def audit(grids: Mapping[str, Sequence[Measured]]) -> dict[str, Any]:
    """Pruning of every grid under every budget."""
    decisions = pruned = false_discards = sweeps = 0
    out_of_memory: list[int] = []
    for grid in grids.values():
        for budget_bytes in budgets_of(grid):
            sweeps += 1
            gone = [each for each in grid if each.estimate.lower_bound_bytes > budget_bytes]
            wrong = [each for each in gone if each.peak_bytes <= budget_bytes]
            decisions, pruned, false_discards = decisions + len(grid), pruned + len(gone), false_discards + len(wrong)
            admitted = [each for each in grid if each.estimate.lower_bound_bytes <= budget_bytes]
            out_of_memory += [oom_trials(admitted, budget_bytes, seed=seed) for seed in range(ORDERS)]
    return {
        "grids": len(grids),
        "candidates": sum(map(len, grids.values())),
        "sweeps": sweeps,
        "decisions": decisions,
        "pruned": pruned,
        "false_discards": false_discards,
        "oom_trials_per_sweep": round(sum(out_of_memory) / max(1, len(out_of_memory)), 3),
        "oom_trials_most": max(out_of_memory, default=0),
    }


def budgets_of(grid: Sequence[Measured]) -> list[int]:
    """Each measured peak, and one byte less, that at least one candidate keeps."""
    peaks = sorted({each.peak_bytes for each in grid})
    return sorted({*peaks, *(peak - 1 for peak in peaks[1:])})


def oom_trials(admitted: Sequence[Measured], budget_bytes: int, *, seed: int) -> int:
    """Trials that run out of memory in a grid search."""
    left = list(admitted)
    random.Random(seed).shuffle(left)
    count = 0
    while left:
        first = left.pop(0)
        if first.peak_bytes > budget_bytes:
            count += 1
            left = [each for each in left if not needs_no_less_memory(each.candidate, first.candidate)]
    return count


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*")
    parser.add_argument("--sweep", type=Path, help="sweep file of the results")
    given = parser.parse_args()
    if not given.results:
        print(json.dumps({"closed_form": audit(kept_grids())}))
        return
    sweep = with_facts(load_sweep(given.sweep), note=lambda text: None)
    launched = {
        record.candidate_id for each in given.results for record in load_trials(each) if record.peak_memory_bytes
    }
    candidates = [candidate for candidate, _ in _candidates(sweep) if candidate.candidate_id in launched]
    traces = trace_sweep(sweep, candidates, progress=lambda done, needed: None)
    print(
        json.dumps(
            {
                "closed_form": audit({each: grid_of(each, sweep, {}) for each in given.results}),
                "trace": audit({each: grid_of(each, sweep, traces.estimates) for each in given.results}),
                "notes": traces.notes,
            }
        )
    )


if __name__ == "__main__":
    main()
