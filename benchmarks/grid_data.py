"""Reads recorded grids, and says how fast each candidate truly is and which of them tie."""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from replay import Grid

from raysweep.plan import make_plan
from raysweep.probe import Probe
from raysweep.results.interval import Interval, normal_interval, paired_log_ratio
from raysweep.search.searchers import prospects
from raysweep.serde import from_dict
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import TrialStatus

DATA = Path(__file__).parent / "data"
SWEEP_KEY = b"sweep"
BEGUN_KEY = b"begun"
"""Round -> the candidates that it was begun with, so that one that was cut off goes on."""
COLUMNS = pa.schema(
    {
        "candidate_id": pa.string(),
        "round": pa.int64(),
        "status": pa.string(),
        "reason": pa.string(),
        "step_time_s_median": pa.float64(),
        "step_time_s_iqr": pa.float64(),
        "measured_steps": pa.int64(),
        "peak_memory_bytes": pa.int64(),
        "group_id": pa.string(),
        "position_in_group": pa.int64(),
        "started_at": pa.string(),
        "probe": pa.string(),
    }
)
"""One row a launch; the probe (JSON) is with the first of a worker group. The sweep file is in the metadata."""
NEAR = 0.1
"""How much slower than the best a candidate may be to be told from it by further rounds."""
SETTLED = 0.02
"""Half width of the 95 % interval of a paired difference at which it counts as known."""

Rounds = Mapping[str, Mapping[int, float]]
"""candidate_id -> round -> step time in seconds, of the launches that completed."""


def rounds_of(rows: Sequence[Mapping[str, Any]]) -> Rounds:
    """The completed launches of a file's rows. A launch that failed is missing in its round."""
    rounds: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["status"] == TrialStatus.COMPLETED:
            rounds.setdefault(row["candidate_id"], {})[row["round"]] = row["step_time_s_median"]
    return rounds


def log_ratio(rounds: Rounds, candidate_id: str, reference: str) -> Interval:
    """Logarithm of a candidate's step time over the reference's, by the rounds that have both."""
    shared = sorted(rounds[candidate_id].keys() & rounds[reference].keys())
    return paired_log_ratio(
        [rounds[candidate_id][each] for each in shared], [rounds[reference][each] for each in shared]
    )


def best_of(rounds: Rounds) -> str:
    """The candidate with the lowest geometric mean over its rounds. All have the same global batch."""
    return min(rounds, key=lambda name: mean_s(rounds[name]))


def mean_s(times_s: Mapping[int, float]) -> float:
    """Geometric mean of step times over rounds, in seconds."""
    return statistics.geometric_mean(times_s.values())


def at_one_pace(rounds: Rounds) -> Rounds:
    """Step times as if the machine had the pace of its largest round in all: a machine's pace drifts over hours.

    The pace of a round is the median ratio of its step times to those of the largest one, over the candidates of both.
    """
    sizes = _sizes(rounds)
    largest = max(sizes, key=lambda number: (sizes[number], -number))

    def pace(number: int) -> float:
        both = [times for times in rounds.values() if number in times and largest in times]
        return statistics.median(times[number] / times[largest] for times in both) if both else 1.0

    paces = {number: pace(number) for number in sizes}
    return {name: {number: t / paces[number] for number, t in times.items()} for name, times in rounds.items()}


def noise_pct(rounds: Rounds) -> float:
    """Typical spread of one candidate over the rounds: median standard deviation of log step times, in percent."""
    spreads = [statistics.stdev(map(math.log, times.values())) for times in rounds.values() if len(times) > 1]
    return 100 * statistics.median(spreads) if spreads else math.nan


def near_best(rounds: Rounds) -> list[str]:
    """The best and those within 10 % of it."""
    best = best_of(rounds)
    limit = math.log1p(NEAR)
    return [name for name in rounds if log_ratio(rounds, name, best).centre <= limit]


def unsettled(rounds: Rounds) -> list[str]:
    """Those near the best whose difference to it is not known within +-2 %."""
    best = best_of(rounds)
    return [name for name in near_best(rounds) if name != best and not _is_known(rounds, name, best)]


def to_launch_again(rounds: Rounds, *, most_rounds: int) -> list[str]:
    """The best and whoever has yet to be told from it; nobody where all are, or have had so many rounds with it.

    One launch within 10 % of the best is enough to be told from it: a search may meet that launch and no other.
    """
    best = best_of(rounds)
    limit_s = mean_s(rounds[best]) * (1 + NEAR)
    open_ones = [
        name
        for name, times in rounds.items()
        if name != best
        and min(times.values()) <= limit_s
        and len(times.keys() & rounds[best].keys()) < most_rounds
        and not _is_known(rounds, name, best)
    ]
    return [best, *open_ones] if open_ones else []


def whole_rounds(rounds: Rounds) -> list[int]:
    """The rounds of the whole grid, or of most of it."""
    return sorted(number for number, size in _sizes(rounds).items() if size > len(rounds) / 2)


def _is_known(rounds: Rounds, name: str, best: str) -> bool:
    ratio = log_ratio(rounds, name, best)
    return (ratio.high - ratio.low) / 2 <= math.log1p(SETTLED)


def load_grid(path: Path, *, seed: int, fit_share: float = 1.0) -> Grid:
    """A recorded grid to search in: launches are drawn from one half of the rounds, the truth is the other's.

    With a `fit_share` below 1 the memory budget is the peak that so great a share of the candidates stayed within, so
    that a search has to find out what fits; with 1 it is the sweep's own.

    Which rounds are in which half is decided by the seed. Candidates whose difference to the best, in the half of the
    truth, has an interval that holds 0 are tied with it; a single round has the interval of the grid's noise. A
    candidate that lacks a launch in either half is left out. Each round's own pace is taken out: a search takes
    minutes, while the rounds of a grid are hours apart.
    """
    sweep, rows = read_rows(path)
    peaks = {row["candidate_id"]: row["peak_memory_bytes"] for row in rows if row["peak_memory_bytes"]}
    if fit_share < 1:
        budget_bytes = sorted(peaks.values())[int(fit_share * (len(peaks) - 1))]
        sweep = replace(sweep, file=sweep.file.model_copy(update={"memory_budget": budget_bytes}))
    plan = make_plan(sweep)
    budget_bytes = plan.memory_budget_bytes or max(peaks.values())
    too_large = {name for name, peak in peaks.items() if peak > budget_bytes}
    rounds = at_one_pace({name: times for name, times in rounds_of(rows).items() if name not in too_large})
    shown_rounds = _half_of_rounds(rounds, random.Random(seed))
    shown = _of(rounds, lambda number: number in shown_rounds)
    truth = _of({name: rounds[name] for name in shown}, lambda number: number not in shown_rounds)
    too_large |= {row["candidate_id"] for row in rows if row["status"] == TrialStatus.OOM}
    known = [each for each in prospects(sweep, plan) if each.candidate.candidate_id in truth.keys() | too_large]
    batches = {each.candidate.candidate_id: each.global_batch_size for each in known}
    best = best_of(truth)
    return Grid(
        prospects=known,
        pruned=[row.candidate for row in plan.rows if row.status is TrialStatus.PRUNED],
        draw=lambda name, rng: rng.choice(list(shown[name].values())),
        peaks_bytes=peaks,
        budget_bytes=plan.memory_budget_bytes,
        rates={name: batches[name] / mean_s(times) for name, times in truth.items()},
        shown_s={name: mean_s(times) for name, times in shown.items()},
        tied=frozenset(name for name in truth if _ties(truth, name, best, noise_pct(rounds) / 100)),
        device=sweep.workload.device,
        world_size=sweep.workload.world_size,
        probe=_first_probe(rows),
    )


def _first_probe(rows: Sequence[Mapping[str, Any]]) -> Probe | None:
    """That of the first worker group: a search has no more to start from."""
    texts = [row["probe"] for row in rows if row.get("probe")]
    return from_dict(Probe, json.loads(texts[0])) if texts else None


def read_rows(path: Path) -> tuple[Sweep, list[dict[str, Any]]]:
    """The sweep of a recorded grid, and its launches."""
    table = pq.read_table(path)
    return sweep_of(table.schema.metadata[SWEEP_KEY].decode()), table.to_pylist()


def recorded() -> list[Path]:
    """The grids that come along, by name."""
    return sorted(DATA.glob("*.parquet"))


def sweep_of(text: str) -> Sweep:
    """The sweep of a file's text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sweep.yaml")
        path.write_text(text)
        return load_sweep(path)


def _sizes(rounds: Rounds) -> Counter[int]:
    """Round -> how many candidates completed in it."""
    return Counter(number for times in rounds.values() for number in times)


def _half_of_rounds(rounds: Rounds, rng: random.Random) -> set[int]:
    """Half of the rounds of the whole grid, and half of those that came after them."""
    whole = whole_rounds(rounds)
    later = sorted(_sizes(rounds).keys() - set(whole))
    return {*rng.sample(whole, len(whole) // 2), *rng.sample(later, len(later) // 2)}


def _of(rounds: Rounds, belongs: Callable[[int], bool]) -> Rounds:
    chosen = {name: {number: t for number, t in times.items() if belongs(number)} for name, times in rounds.items()}
    return {name: times for name, times in chosen.items() if times}


def _ties(rounds: Rounds, name: str, best: str, launch_log_sd: float) -> bool:
    """Whether a candidate near the best is not told from it; where they share one round only, by the grid's noise."""
    ratio = log_ratio(rounds, name, best)
    if not math.isfinite(ratio.low):
        shared = len(rounds[name].keys() & rounds[best].keys())
        ratio = normal_interval(ratio.centre, math.sqrt(2) * launch_log_sd) if shared else ratio
    return name == best or (math.isfinite(ratio.low) and ratio.centre <= math.log1p(NEAR) and ratio.low <= 0.0)
