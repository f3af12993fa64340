"""How well the step-time model predicts the rest of a recorded grid from a search's first trials; a JSON line a grid.

python benchmarks/step_time_accuracy.py [GRID.parquet ...] [--after 6] [--seeds 20]

The trials are those that guided search proposes, drawn from one half of the rounds; the errors are against the other
half, each round's own pace taken out. `noise_pct` is the grid's own: how much one candidate differs between rounds, as
launched and at one pace. `own_kendall_tau` is what all launches of one half tell of the order in the other: no model
can be hoped to do better. `inside_band_share` is the share of the rest within two standard deviations. The last line
has the worst of each over the grids, and in `error_met_share` the share of the grids whose error is at most 5 % or
their noise at one pace.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from grid_data import at_one_pace, load_grid, mean_s, noise_pct, read_rows, recorded, rounds_of, unsettled
from replay import Grid, launch, make
from scipy.stats import kendalltau

from raysweep.search.prior import rates
from raysweep.search.step_time import Observation, StepPoint, StepTimeModel
from raysweep.serde import to_dict

Figures = Mapping[str, float]
LEAST_ERROR_PCT = 5.0


def accuracy(grid: Grid, *, seed: int, after: int) -> Figures:
    """Errors over the candidates that were not launched, after so many completed trials."""
    observed = first_trials(grid, seed=seed, count=after)
    model = StepTimeModel(
        [StepPoint(candidate=each.candidate, work=each.work) for each in grid.prospects], device=grid.device
    )
    if grid.probe:
        model.start_from(rates(grid.device, [grid.probe], world_size=grid.world_size))
    forecast = model.fit(observed)
    names = [each.candidate.candidate_id for each in grid.prospects]
    rest = [index for index, name in enumerate(names) if index not in observed and name in grid.rates]
    truth_s = np.array([grid.prospects[index].global_batch_size / grid.rates[names[index]] for index in rest])
    predicted_s, log_sd = forecast.step_time_s[rest], forecast.log_sd[rest]
    shown_s = np.array([grid.shown_s[names[index]] for index in rest])
    return {
        "median_error_pct": 100 * float(np.median(np.abs(predicted_s / truth_s - 1))),
        "kendall_tau": float(kendalltau(predicted_s, truth_s).statistic),
        "own_kendall_tau": float(kendalltau(shown_s, truth_s).statistic),
        "inside_band_share": float(np.mean(np.abs(np.log(predicted_s / truth_s)) <= 2 * log_sd)),
    }


def first_trials(grid: Grid, *, seed: int, count: int) -> dict[int, Observation]:
    """Index of the prospect -> what its launch showed, for the first trials of a guided search that completed."""
    searcher = make("guided", grid, seed=seed, trials=None)
    by_id = {each.candidate.candidate_id: index for index, each in enumerate(grid.prospects)}
    rng = random.Random(seed)
    observed: dict[int, Observation] = {}
    while len(observed) < count and isinstance(suggestion := searcher.suggest("trial"), dict):
        index = by_id[suggestion["candidate_id"]]
        measurement = launch(grid.prospects[index], grid, rng)
        searcher.on_trial_complete("trial", {"measurements": [to_dict(measurement)]})
        if measurement.figures:
            observed[index] = Observation(step_time_s=measurement.figures.step_time_s_median, log_error=0.0)
    return observed


def main() -> None:
    """Print the figures of each grid, and the worst of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", type=Path, default=recorded())
    parser.add_argument("--after", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    lines = [measure(path, after=arguments.after, seeds=arguments.seeds) for path in arguments.grids]
    met = [line["median_error_pct"] <= max(LEAST_ERROR_PCT, line["noise_at_one_pace_pct"]) for line in lines]
    worst = {
        "median_error_pct": max(line["median_error_pct"] for line in lines),
        "error_met_share": round(sum(met) / len(met), 3),
        "kendall_tau": min(line["kendall_tau"] for line in lines),
        "inside_band_share": min(line["inside_band_share"] for line in lines),
    }
    print(json.dumps({"benchmark": "step_time_accuracy", "grid": "worst", **worst}))


def measure(path: Path, *, after: int, seeds: int) -> Mapping[str, Any]:
    """A grid's line, which is printed, too: means over the seeds."""
    found = [accuracy(load_grid(path, seed=seed), seed=seed, after=after) for seed in range(seeds)]
    means = {name: round(statistics.fmean(each[name] for each in found), 3) for name in found[0]}
    line = {"benchmark": "step_time_accuracy", "grid": path.stem, **about(path), "trials": after, **means}
    print(json.dumps(line), flush=True)
    return line


def about(path: Path) -> Mapping[str, Any]:
    """What a grid holds: its size, its fastest and slowest step, how far its launches differ."""
    sweep, rows = read_rows(path)
    rounds = rounds_of(rows)
    at_pace = at_one_pace(rounds)
    steps_s = [mean_s(times) for times in at_pace.values()]
    return {
        "workers": sweep.workload.world_size,
        "candidates": len(rounds),
        "launches": len(rows),
        "unsettled": len(unsettled(at_pace)),
        "fastest_step_s": round(min(steps_s), 2),
        "slowest_step_s": round(max(steps_s), 2),
        "noise_pct": round(noise_pct(rounds), 2),
        "noise_at_one_pace_pct": round(noise_pct(at_pace), 2),
    }


if __name__ == "__main__":
    main()
