"""How well the step-time model predicts the rest of a recorded grid from a search's first trials; one JSON line a grid.

python benchmarks/step_time_accuracy.py [GRID.parquet ...] [--after 6] [--seeds 20]

The trials are those that guided search proposes, drawn from one half of the rounds; the errors are against the other
half. `noise_pct` is the grid's own: how much one candidate differs between rounds. `inside_band_share` is the share of
the rest within two standard deviations.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from grid_data import load_grid, noise_pct, read_rows, recorded, rounds_of
from replay import Grid, launch, make
from scipy.stats import kendalltau

from raysweep.search.prior import rates
from raysweep.search.step_time import Observation, StepPoint, StepTimeModel
from raysweep.serde import to_dict

Figures = Mapping[str, float]


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
    return {
        "median_error_pct": 100 * float(np.median(np.abs(predicted_s / truth_s - 1))),
        "kendall_tau": float(kendalltau(predicted_s, truth_s).statistic),
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
    """Print the figures of each grid, means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", type=Path, default=recorded())
    parser.add_argument("--after", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    for path in arguments.grids:
        found = [
            accuracy(load_grid(path, seed=seed), seed=seed, after=arguments.after) for seed in range(arguments.seeds)
        ]
        means = {name: round(statistics.fmean(each[name] for each in found), 3) for name in found[0]}
        noise = round(noise_pct(rounds_of(read_rows(path)[1])), 2)
        about = {"grid": path.stem, "trials": arguments.after, "noise_pct": noise}
        print(json.dumps({"benchmark": "step_time_accuracy", **about, **means}))


if __name__ == "__main__":
    main()
