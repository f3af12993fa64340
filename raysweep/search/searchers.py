"""The choice of searcher by the method that the sweep file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysweep.errors import ConfigError
from raysweep.plan import SweepPlan, search_order
from raysweep.search.searcher import ALL_LAUNCHED, CandidateSearcher, OrderedSearcher
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement, TrialStatus


def make_searcher(sweep: Sweep, plan: SweepPlan, kept: Mapping[str, Measurement]) -> CandidateSearcher:
    """The searcher of a sweep, which knows what was kept of an earlier run.

    Args:
        sweep: the sweep file, read.
        plan: its plan.
        kept: candidate id -> the launch that need not be repeated; it counts towards the trials.

    Raises:
        ConfigError: when the searcher's package is not installed.
    """
    section = sweep.file.search
    order = search_order(sweep, plan)
    left = [candidate for candidate in order if candidate.candidate_id not in kept]
    trials = None if section.method == "grid" or section.trials is None else max(0, section.trials - len(kept))
    options: dict[str, Any] = {
        "trials": trials,
        "trials_spent": f"the budget of {section.trials} trials, for {len(order)} admitted candidates, was spent",
        "seconds": section.budget().seconds_allowed(sweep.workload.world_size),
    }
    if trials is not None and trials >= len(left):
        options["trials_spent"] = ALL_LAUNCHED
    if section.method == "optuna":
        # An extra, and seconds to load.
        try:
            from raysweep.search.optuna_searcher import OptunaSearcher
        except ImportError as error:
            rule = f"needs the extra optuna (pip install raysweep[optuna]): {error}"
            raise ConfigError(key="search.method", value="optuna", rule=rule) from None

        pruned = [row.candidate for row in plan.rows if row.status is TrialStatus.PRUNED]
        options |= {"pruned": pruned, "memory_budget_bytes": plan.memory_budget_bytes, "seed": section.seed}
        searcher: CandidateSearcher = OptunaSearcher(left, **options)
    else:
        searcher = OrderedSearcher(left, **options)
    for candidate in order:
        if candidate.candidate_id in kept:
            searcher.knows(candidate, kept[candidate.candidate_id])
    return searcher
