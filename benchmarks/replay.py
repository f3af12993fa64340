"""Plays searches against grids whose truth is known: the product's own searchers, launches that are looked up."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raysweep.budget import CONFIRM_ROUNDS, CONFIRM_WINDOW_FACTOR
from raysweep.candidate import Candidate
from raysweep.measurement import Figures
from raysweep.probe import Probe
from raysweep.search.guided import GuidedSearcher
from raysweep.search.optuna_searcher import OptunaSearcher
from raysweep.search.prospect import Prospect
from raysweep.search.searcher import CandidateSearcher, OrderedSearcher
from raysweep.serde import to_dict
from raysweep.trial import Measurement, Phase, TrialStatus

METHODS = ("guided", "optuna", "random", "stage_walk")
FINALISTS = 3
CONFIRM_DRAWS = CONFIRM_ROUNDS * CONFIRM_WINDOW_FACTOR
"""A round of the confirmation has a window twice as long as a trial's, so it counts as two draws."""
STEPS = 8

Draw = Callable[[str, random.Random], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Candidates with what a launch of each shows."""

    prospects: Sequence[Prospect]
    """Those that a plan admits."""
    pruned: Sequence[Candidate]
    draw: Draw
    """candidate_id and a generator -> the step time that one launch shows, in seconds."""
    peaks_bytes: Mapping[str, int]
    """candidate_id -> the true peak."""
    budget_bytes: int | None
    rates: Mapping[str, float]
    """candidate_id -> true samples/s, of those that fit."""
    shown_s: Mapping[str, float] = field(default_factory=dict)
    """candidate_id -> mean step time of all launches that `draw` may show; empty where they are drawn from a law."""
    tied: frozenset[str] = field(default_factory=frozenset)
    """Those that the truth does not tell from the best: regret 0."""
    device: str = "cpu"
    world_size: int = 1
    probe: Probe | None = None
    """What the first launch of a search brings of the workers and links; None where it was not recorded."""

    def regret(self, candidate_id: str | None) -> float:
        """How much slower a candidate is than the best, as a share of the best; 1 where there is none."""
        if candidate_id in self.tied:
            return 0.0
        return 1 - self.rates[candidate_id] / max(self.rates.values()) if candidate_id else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One search: what it launched in order, with samples/s or None where it ran out of memory."""

    launches: Sequence[tuple[str, float | None]]
    chosen: str | None
    stopped: str

    def trials_to(self, grid: Grid, *, regret: float) -> int | None:
        """Launches until one of a candidate within `regret` of the best; None where there was none."""
        good = [number for number, (each, _) in enumerate(self.launches, start=1) if self._is_good(grid, each, regret)]
        return good[0] if good else None

    @staticmethod
    def _is_good(grid: Grid, candidate_id: str, regret: float) -> bool:
        return candidate_id in grid.rates and grid.regret(candidate_id) <= regret


def play(method: str, grid: Grid, *, seed: int, trials: int) -> Played:
    """Search by a method, then confirm the best three as the product does: three rounds of twice the window."""
    rng = random.Random(seed)
    launches = _walk(grid, rng) if method == "stage_walk" else None
    stopped = "the walk ended"
    if launches is None:
        launches, stopped = _search(make(method, grid, seed=seed, trials=trials), grid, rng)
    return Played(launches=launches, chosen=_confirmed(launches, grid, rng), stopped=stopped)


def make(method: str, grid: Grid, *, seed: int, trials: int | None) -> CandidateSearcher:
    """The product's searcher of a method over a grid, as a sweep would make it."""
    order = [prospect.candidate for prospect in grid.prospects]
    random.Random(seed).shuffle(order)
    if method == "guided":
        return GuidedSearcher(
            order,
            prospects=grid.prospects,
            device=grid.device,
            world_size=grid.world_size,
            memory_budget_bytes=grid.budget_bytes,
            trials=trials,
        )
    if method == "optuna":
        return OptunaSearcher(
            order, pruned=grid.pruned, memory_budget_bytes=grid.budget_bytes, seed=seed, trials=trials
        )
    assert method == "random", method
    return OrderedSearcher(order, trials=trials)


def launch(prospect: Prospect, grid: Grid, rng: random.Random) -> Measurement:
    """One launch of a candidate."""
    name = prospect.candidate.candidate_id
    peak_bytes = grid.peaks_bytes[name]
    fits = name in grid.rates
    return Measurement(
        candidate_id=name,
        phase=Phase.SEARCH,
        round=0,
        status=TrialStatus.COMPLETED if fits else TrialStatus.OOM,
        figures=_figures(grid.draw(name, rng), prospect.global_batch_size, peak_bytes) if fits else None,
        peak_memory_bytes=peak_bytes,
        group_id="g",
        probe=grid.probe,
    )


def summary(grids: Sequence[Grid], played: Sequence[Played]) -> dict[str, float | None]:
    """The figures of a method over searches, each with its grid; regrets in percent of the best rate.

    `within_2pct_share` is of what was chosen in the end, `reached_2pct_share` of what was launched at all.
    """
    regrets = sorted(100 * grid.regret(each.chosen) for grid, each in zip(grids, played, strict=True))
    counts = [len(each.launches) for each in played]
    reached = sorted(each.trials_to(grid, regret=0.02) or math.inf for grid, each in zip(grids, played, strict=True))
    typical = reached[len(reached) // 2]
    return {
        "trials_mean": round(statistics.fmean(counts), 2),
        "trials_max": max(counts),
        "regret_mean_pct": round(statistics.fmean(regrets), 2),
        "regret_p90_pct": round(regrets[int(0.9 * (len(regrets) - 1))], 2),
        "within_2pct_share": round(sum(regret <= 2 for regret in regrets) / len(regrets), 3),
        "reached_2pct_share": round(sum(map(math.isfinite, reached)) / len(reached), 3),
        "trials_to_2pct": None if math.isinf(typical) else typical,
        "oom_mean": round(statistics.fmean(sum(rate is None for _, rate in each.launches) for each in played), 2),
    }


def _search(searcher: CandidateSearcher, grid: Grid, rng: random.Random) -> tuple[list[tuple[str, float | None]], str]:
    by_id = {prospect.candidate.candidate_id: prospect for prospect in grid.prospects}
    launches: list[tuple[str, float | None]] = []
    while isinstance(suggestion := searcher.suggest("trial"), dict):
        measurement = launch(by_id[suggestion["candidate_id"]], grid, rng)
        searcher.on_trial_complete("trial", {"measurements": [to_dict(measurement)]})
        launches.append((measurement.candidate_id, measurement.figures and measurement.figures.samples_per_s))
    return launches, searcher.stopped


def _walk(grid: Grid, rng: random.Random) -> list[tuple[str, float | None]]:
    """The shape of DeepSpeed's autotuner: stage by stage, the micro-batch grows while it pays, an idle stage ends it.

    It knows no checkpointing: each stage takes the smallest interval of the grid that the plan admits, so that it is
    not held against the walk where nothing fits without. No limit of trials.
    """
    launches: list[tuple[str, float | None]] = []
    best = 0.0
    stages = sorted({prospect.candidate.zero_stage for prospect in grid.prospects})
    for stage in stages:
        of_stage = [prospect for prospect in grid.prospects if prospect.candidate.zero_stage == stage]
        interval = min(prospect.candidate.activation_checkpoint_interval for prospect in of_stage)
        row = [each for each in of_stage if each.candidate.activation_checkpoint_interval == interval]
        best_of_stage = before = 0.0
        for prospect in sorted(row, key=lambda each: each.candidate.micro_batch_size_per_gpu):
            figures = launch(prospect, grid, rng).figures
            rate = figures.samples_per_s if figures else 0.0
            launches.append((prospect.candidate.candidate_id, rate or None))
            best_of_stage = max(best_of_stage, rate)
            if rate < 1.01 * before or not rate:
                break
            before = rate
        if best and best_of_stage <= best:
            break
        best = max(best, best_of_stage)
    return launches


def _confirmed(launches: Sequence[tuple[str, float | None]], grid: Grid, rng: random.Random) -> str | None:
    measured = [(rate, name) for name, rate in launches if rate is not None]
    batches = {each.candidate.candidate_id: each.global_batch_size for each in grid.prospects}
    finalists = [name for _, name in sorted(measured, reverse=True)[:FINALISTS]]

    def mean_rate(name: str) -> float:
        return sum(batches[name] / grid.draw(name, rng) for _ in range(CONFIRM_DRAWS)) / CONFIRM_DRAWS

    return max(finalists, key=mean_rate) if finalists else None


def _figures(step_time_s: float, global_batch_size: int, peak_bytes: int) -> Figures:
    rate = global_batch_size / step_time_s
    return Figures(
        samples_per_s=rate,
        tokens_per_s=rate,
        step_time_s_median=step_time_s,
        step_time_s_iqr=0.0,
        step_times_s=(step_time_s,) * STEPS,
        measured_steps=STEPS,
        warmup_steps=3,
        skipped_steps=0,
        cpu_time_s=0.0,
        first_loss=0.0,
        loss_at_step_5=None,
        peak_memory_bytes=peak_bytes,
        build_peak_bytes=0,
        resting_bytes=0,
        peak_phase="",
        peak_rank=0,
        peak_node="",
        recomputed_blocks=0,
        build_s=0.0,
        left_behind_bytes=0,
        reserved_bytes=None,
        device_used_bytes=None,
        memory_pressure=False,
        cycled_data=False,
        device="",
        nodes=(),
        worker_pids=(),
    )
