"""Predicts what a sweep's candidates would do with 2, 4 and 8 times its workers, for the report."""

from __future__ import annotations

import random
from dataclasses import replace

from raysweep.errors import ConfigError
from raysweep.results.journal import JournalContents
from raysweep.scale_forecast import ScaleForecast, ScalePrediction
from raysweep.search.explain_steps import FEWEST_FITTED, MOST_FITTED
from raysweep.search.predict import Scale, predict
from raysweep.trial import PlanRow, TrialStatus

MULTIPLES = (2, 4, 8)


def foretell_scales(contents: JournalContents) -> ScaleForecast | None:
    """The fastest at each multiple; None where fewer than four candidates ran to their end, which fit no model."""
    completed = {each.candidate_id for each in contents.measurements if each.status is TrialStatus.COMPLETED}
    if len(completed) < FEWEST_FITTED:
        return None
    contents, fitted_to = _thinned(contents, completed)
    workers = max(row.world_size for row in contents.sweep.plan_rows if row.candidate.candidate_id in completed)
    return ScaleForecast(
        measured_world_size=workers,
        fitted_to=fitted_to,
        predictions=[_at(contents, workers * multiple) for multiple in MULTIPLES],
    )


def _at(contents: JournalContents, world_size: int) -> ScalePrediction:
    try:
        best = predict(contents, Scale(world_size=world_size))[0]
    except ConfigError:
        batch = contents.sweep.workload.global_batch_size
        return ScalePrediction(world_size=world_size, reason=f"none: no micro-batch gives the global batch of {batch}")
    if best.fits is False:
        return ScalePrediction(world_size=world_size, reason="none: nothing is predicted to fit in memory")
    return ScalePrediction(
        world_size=world_size,
        candidate_id=best.candidate.candidate_id,
        samples_per_s=best.samples_per_s,
        samples_per_s_low=best.samples_per_s_low,
        samples_per_s_high=best.samples_per_s_high,
        efficiency=best.efficiency,
    )


def _thinned(contents: JournalContents, completed: set[str]) -> tuple[JournalContents, int]:
    """At most `MOST_FITTED` of what was measured, half of it the fastest, and how many there are.

    The time of a fit grows with their third power. What was not measured stays, because it may be fastest elsewhere.
    """
    rates = {
        each.candidate_id: each.figures.samples_per_s
        for each in contents.measurements
        if each.figures and each.candidate_id in completed
    }
    if len(rates) <= MOST_FITTED:
        return contents, len({each.candidate_id for each in contents.measurements if each.figures})
    ordered = sorted(rates, key=lambda name: -rates[name])
    half = MOST_FITTED // 2
    kept = {*ordered[:half], *random.Random(0).sample(ordered[half:], MOST_FITTED - half)}

    def stays(row: PlanRow) -> bool:
        return row.candidate.candidate_id in kept or row.candidate.candidate_id not in rates

    start = replace(contents.sweep, plan_rows=tuple(row for row in contents.sweep.plan_rows if stays(row)))
    measurements = tuple(each for each in contents.measurements if each.candidate_id in kept)
    return replace(contents, sweeps=(*contents.sweeps[:-1], start), measurements=measurements), len(kept)
