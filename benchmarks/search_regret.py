"""Replays searches over recorded grids, 50 seeds a method; prints one JSON line a grid and method, and one a method.

python benchmarks/search_regret.py [GRID.parquet ...] [--seeds 50] [--trials 12] [--methods guided ...]
    [--fit-share 0.3]

Launches are drawn from one half of a grid's rounds, the truth is the other half's; candidates that the truth does not
tell from the best count as regret 0. After the search the best three are confirmed, as the product does.
`trials_to_2pct` is the median over the seeds of the launches until one within 2 % of the best; null where most seeds
had none. With `--fit-share` the memory budget is the peak within which that share of a grid's candidates stayed: what
is largest and fastest does not fit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from grid_data import load_grid, noise_pct, read_rows, recorded, rounds_of
from replay import METHODS, Grid, Played, play, summary


def main() -> None:
    """Print the figures of each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", type=Path, default=recorded())
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--fit-share", type=float)
    arguments = parser.parse_args()
    halves = {
        path: [load_grid(path, seed=seed, fit_share=arguments.fit_share) for seed in range(arguments.seeds)]
        for path in arguments.grids
    }
    for method in arguments.methods:
        all_grids: list[Grid] = []
        all_played: list[Played] = []
        for path, grids in halves.items():
            played = [play(method, grid, seed=seed, trials=arguments.trials) for seed, grid in enumerate(grids)]
            all_grids += grids
            all_played += played
            _, rows = read_rows(path)
            about = {"grid": path.stem, "candidates": len(grids[0].prospects)}
            about |= {"noise_pct": round(noise_pct(rounds_of(rows)), 2), "tied": len(grids[0].tied)}
            print(json.dumps({"benchmark": "search_regret", "method": method, **about, **summary(grids, played)}))
        total = {"grid": "all", "fit_share": arguments.fit_share, **summary(all_grids, all_played)}
        print(json.dumps({"benchmark": "search_regret", "method": method, **total}), flush=True)


if __name__ == "__main__":
    main()
