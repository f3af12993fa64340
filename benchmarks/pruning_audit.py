"""Prunes grids whose peaks were measured, under many budgets: what is discarded wrongly, and what runs out of memory.

python benchmarks/pruning_audit.py                              # the runs that are kept with the tests, closed form
python benchmarks/pruning_audit.py RESULTS... --sweep FILE      # a sweep's results, with traces of its candidates, too

A false discard is a candidate that is pruned and whose peak is within the budget. For these every measured peak is a
budget, and one byte less: the hardest there are. Trials that run out of memory are counted under 100 budgets evenly
between the smallest peak and the largest, as a grid search would meet them, in seeded random orders, an out-of-memory
spreading to larger micro-batches of the same everything; `at_a_peak` counts them under the hard budgets, where many
candidates may lie within a few bytes of the budget. With --sweep the candidates that are admitted under its own budget
are compared with those whose run fits. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
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
EVEN_BUDGETS = 100


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
    sweeps = [(grid, budget_bytes) for grid in grids.values() for budget_bytes in budgets_of(grid)]
    gone = [[each for each in grid if each.estimate.lower_bound_bytes > budget] for grid, budget in sweeps]
    wrong = [
        [each for each in pruned if each.peak_bytes <= sweep[1]] for pruned, sweep in zip(gone, sweeps, strict=True)
    ]
    usual = [oom for grid in grids.values() for budget in even_budgets(grid) for oom in oom_trials(grid, budget)]
    at_a_peak = [oom for grid, budget in sweeps for oom in oom_trials(grid, budget)]
    return {
        "grids": len(grids),
        "candidates": sum(map(len, grids.values())),
        "budgets_at_a_peak": len(sweeps),
        "decisions": sum(len(grid) for grid, _ in sweeps),
        "pruned": sum(map(len, gone)),
        "false_discards": sum(map(len, wrong)),
        "oom_trials_per_sweep": round(statistics.mean(usual), 3),
        "oom_trials_most": max(usual),
        "oom_trials_per_sweep_at_a_peak": round(statistics.mean(at_a_peak), 3),
        "oom_trials_most_at_a_peak": max(at_a_peak),
    }


def admitted(grid: Sequence[Measured], budget_bytes: int) -> dict[str, Any]:
    """What is admitted under one budget, against what fits; `differ` names the candidates where the two part."""
    said = {each.candidate.candidate_id: each.estimate.lower_bound_bytes <= budget_bytes for each in grid}
    fits = {each.candidate.candidate_id: each.peak_bytes <= budget_bytes for each in grid}
    differ = sorted(name for name in fits if said[name] != fits[name])
    return {"admitted": sum(said.values()), "fit": sum(fits.values()), "differ": differ}


def budgets_of(grid: Sequence[Measured]) -> list[int]:
    """Each measured peak, and one byte less, that at least one candidate keeps."""
    peaks = sorted({each.peak_bytes for each in grid})
    return sorted({*peaks, *(peak - 1 for peak in peaks[1:])})


def even_budgets(grid: Sequence[Measured]) -> list[int]:
    """Budgets at equal distances between the smallest measured peak and the largest, both included."""
    least, most = min(each.peak_bytes for each in grid), max(each.peak_bytes for each in grid)
    return [least + (most - least) * step // (EVEN_BUDGETS - 1) for step in range(EVEN_BUDGETS)]


def oom_trials(grid: Sequence[Measured], budget_bytes: int) -> list[int]:
    """Trials that run out of memory in a grid search over what is admitted, for each of the orders."""
    return [_oom_trials(grid, budget_bytes, seed=seed) for seed in range(ORDERS)]


def _oom_trials(grid: Sequence[Measured], budget_bytes: int, *, seed: int) -> int:
    left = [each for each in grid if each.estimate.lower_bound_bytes <= budget_bytes]
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
    found: dict[str, Any] = {"notes": traces.notes}
    methods: dict[str, Mapping[str, MemoryEstimate]] = {"closed_form": {}, "trace": traces.estimates}
    for method, estimates in methods.items():
        grids = {each: grid_of(each, sweep, estimates) for each in given.results}
        found[method] = audit(grids)
        if sweep.memory_budget_bytes is not None:
            found[method]["own_budget"] = [admitted(grid, sweep.memory_budget_bytes) for grid in grids.values()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
