"""Replays searches over recorded grids, 50 seeds a method; prints one JSON line a grid and method, and one a method.

python benchmarks/search_regret.py [GRID.parquet ...] [--seeds 50] [--trials 12] [--methods guided ...]
    [--fit-shares 0.3 1]

Launches are drawn from one half of a grid's rounds, the truth is the other half's; candidates that the truth does not
tell from the best count as regret 0. After the search the best three are confirmed, as the product does.
`trials_to_2pct` is the median over the seeds of the launches until one within 2 % of the best; null where most seeds
had none. All is done with each of the `--fit-shares`: the memory budget is the peak within which that share of a
grid's candidates stayed, and with 1 all fit. With less, what is largest and fastest does not fit; but then most that
compete have been launched twice only, so neither the truth nor a confirmation is surer than one launch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from grid_data import load_grid, noise_pct, read_rows, recorded, rounds_of
from replay import METHODS, Grid, Played, play, summary


def main() -> None:
    """Print the figures of each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", type=Path, default=recorded())
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--methods", nargs="+", default=METHODS[::-1], choices=METHODS)
    parser.add_argument("--fit-shares", nargs="+", type=float, default=[1.0])
    arguments = parser.parse_args()
    for fit_share in arguments.fit_shares:
        halves = {
            path: [load_grid(path, seed=seed, fit_share=fit_share) for seed in range(arguments.seeds)]
            for path in arguments.grids
        }
        for method in arguments.methods:
            replay(method, halves, trials=arguments.trials, about={"fit_share": fit_share})


def replay(method: str, halves: Mapping[Path, Sequence[Grid]], *, trials: int, about: Mapping[str, float]) -> None:
    """Search each grid, split in as many ways as there are seeds, and print a line each and one of all."""
    named = {"benchmark": "search_regret", "method": method, **about}
    all_grids: list[Grid] = []
    all_played: list[Played] = []
    for path, grids in halves.items():
        played = [play(method, grid, seed=seed, trials=trials) for seed, grid in enumerate(grids)]
        all_grids += grids
        all_played += played
        noise = round(noise_pct(rounds_of(read_rows(path)[1])), 2)
        of_grid = {"candidates": len(grids[0].prospects), "noise_pct": noise, "tied": len(grids[0].tied)}
        print(json.dumps({**named, "grid": path.stem, **of_grid, **summary(grids, played)}))
    print(json.dumps({**named, "grid": "all", **summary(all_grids, all_played)}), flush=True)


if __name__ == "__main__":
    main()
