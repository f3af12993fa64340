"""The choice of searcher by the method that the sweep file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysweep.ds_config import render
from raysweep.errors import ConfigError
from raysweep.plan import SweepPlan, search_order
from raysweep.search.prospect import Prospect
from raysweep.search.searcher import ALL_LAUNCHED, CandidateSearcher, OrderedSearcher
from raysweep.step_work import deeper, step_work
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement, TrialStatus
from raysweep.zero_settings import ZeroSettings


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
    most = section.most_trials()
    trials = None if most is None else max(0, most - len(kept))
    options: dict[str, Any] = {
        "trials": trials,
        "trials_spent": f"the budget of {most} trials, for {len(order)} admitted candidates, was spent",
        "racing": section.races(),
        "seconds": section.budget().seconds_allowed(sweep.workload.world_size),
    }
    if trials is not None and trials >= len(left):
        options["trials_spent"] = ALL_LAUNCHED
    searcher: CandidateSearcher
    if section.method == "guided":
        # scipy takes most of a second to load.
        from raysweep.search.guided import GuidedSearcher
        from raysweep.search.lean import LeanSearcher

        workload = sweep.workload
        options |= {"device": workload.device, "world_size": workload.world_size}
        options |= {"memory_budget_bytes": plan.memory_budget_bytes}
        known = prospects(sweep, plan)
        least_rate = sweep.file.objective.at_least_samples_per_s
        if least_rate is not None and all(each.predicted_memory_bytes for each in known):
            searcher = LeanSearcher(left, prospects=known, least_rate=least_rate, **options)
        else:
            searcher = GuidedSearcher(left, prospects=known, **options)
    elif section.method == "optuna":
        # An extra, and seconds to load.
        try:
            from raysweep.search.optuna_searcher import OptunaSearcher
        except ImportError as error:
            rule = f"needs the extra optuna (pip install raysweep[optuna]): {error}"
            raise ConfigError(key="search.method", value="optuna", rule=rule) from None

        pruned = [row.candidate for row in plan.rows if row.status is TrialStatus.PRUNED]
        options |= {"pruned": pruned, "memory_budget_bytes": plan.memory_budget_bytes, "seed": section.seed}
        searcher = OptunaSearcher(left, **options)
    else:
        searcher = OrderedSearcher(left, **options)
    for candidate in order:
        if candidate.candidate_id in kept:
            searcher.knows(candidate, kept[candidate.candidate_id])
    return searcher


def prospects(sweep: Sweep, plan: SweepPlan) -> list[Prospect]:
    """What is known of each admitted candidate before it runs: its work, its batch, its predicted memory."""
    found = []
    for candidate in plan.admitted:
        workload = sweep.workload.of(candidate)
        settings = ZeroSettings.from_ds_config(render(candidate, workload=workload, base=sweep.base_ds_config))
        estimate = plan.estimates.get(candidate.candidate_id)
        found.append(
            Prospect(
                candidate=candidate,
                work=deeper(step_work(candidate, workload, settings), sweep.workload.world_size, workload.world_size),
                global_batch_size=workload.global_batch_of(
                    candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
                ),
                predicted_memory_bytes=estimate.peak_bytes if estimate else None,
                memory_band=estimate.band if estimate else 0.0,
            )
        )
    return found
