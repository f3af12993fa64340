"""The choice of searcher by the method that the sweep file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysweep.calibration import Calibration
from raysweep.ds_config import render
from raysweep.errors import ConfigError
from raysweep.plan import SweepPlan, search_order
from raysweep.search.earlier_trials import LEAST_BAND, EarlierTrials
from raysweep.search.prospect import Prospect
from raysweep.search.searcher import ALL_LAUNCHED, CandidateSearcher, OrderedSearcher
from raysweep.step_work import deeper, step_work
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement, TrialStatus
from raysweep.zero_settings import ZeroSettings


def make_searcher(
    sweep: Sweep, plan: SweepPlan, kept: Mapping[str, Measurement], earlier: EarlierTrials | None = None
) -> CandidateSearcher:
    """The searcher of a sweep, which knows what was kept of an earlier run.

    Args:
        sweep: the sweep file, read.
        plan: its plan.
        kept: candidate id -> the launch that need not be repeated; it counts towards the trials.
        earlier: trials of earlier sweeps, which calibrate the predicted memory of a guided search.

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
        "seconds": section.budget().seconds_allowed(sweep.file.workers.busy),
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
        known = prospects(sweep, plan, earlier)
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


def prospects(sweep: Sweep, plan: SweepPlan, earlier: EarlierTrials | None = None) -> list[Prospect]:
    """What is known of each admitted candidate before it runs: its work, its batch, its predicted memory."""
    known = calibrations(sweep, plan, earlier)
    found = []
    for candidate in plan.admitted:
        workload = sweep.workload.of(candidate)
        settings = ZeroSettings.from_ds_config(render(candidate, workload=workload, base=sweep.base_ds_config))
        estimate = plan.estimates.get(candidate.candidate_id)
        peak_bytes, band = (estimate.peak_bytes, estimate.band) if estimate else (None, 0.0)
        kind = (workload.world_size, candidate.attn_implementation, estimate.source) if estimate else None
        calibration = known.get(kind) if kind else None
        if estimate and calibration and not candidate.torch_compile:
            peak_bytes, band = round(calibration.of(estimate.peak_bytes)), max(calibration.band, LEAST_BAND)
        found.append(
            Prospect(
                candidate=candidate,
                work=deeper(step_work(candidate, workload, settings), sweep.workload.world_size, workload.world_size),
                global_batch_size=workload.global_batch_of(
                    candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
                ),
                predicted_memory_bytes=peak_bytes,
                memory_band=band,
            )
        )
    return found


def calibrations(
    sweep: Sweep, plan: SweepPlan, earlier: EarlierTrials | None
) -> dict[tuple[int, str | None, str], Calibration]:
    """Workers, attention and source of a prediction -> its calibration, of those that trials promise enough of."""
    if earlier is None:
        return {}
    kinds = {}
    for candidate in plan.admitted:
        estimate = plan.estimates.get(candidate.candidate_id)
        if estimate:
            workers = candidate.world_size or sweep.workload.world_size
            kinds[workers, candidate.attn_implementation, estimate.source] = estimate
    found = {key: earlier.of(estimate, world_size=key[0], attention=key[1]) for key, estimate in kinds.items()}
    return {key: calibration for key, calibration in found.items() if calibration is not None}


def calibration_notes(sweep: Sweep, plan: SweepPlan, earlier: EarlierTrials | None) -> list[str]:
    """What a guided search starts from, a sentence for each kind of prediction."""
    if earlier is None or sweep.file.search.method != "guided":
        return []
    found = calibrations(sweep, plan, earlier)
    return [
        earlier.note(each, world_size=workers, attention=attention) for (workers, attention, _), each in found.items()
    ]
