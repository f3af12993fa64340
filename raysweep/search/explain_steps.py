"""Takes the winner's step apart by the step-time model, and predicts each measured candidate from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raysweep.candidate import Candidate
from raysweep.ds_config import render
from raysweep.measurement import median_log_error
from raysweep.results.journal import JournalContents
from raysweep.search.step_time import Observation, StepPoint, StepTimeModel
from raysweep.step_shares import StepShares
from raysweep.step_work import StepWork, step_work
from raysweep.trial import Measurement, Phase, SweepStart, TrialStatus
from raysweep.zero_settings import ZeroSettings

MOST_FITTED = 60
"""Candidates that a fit takes at most, drawn by a seed: its time grows with their third power."""
FEWEST_FITTED = 4
"""With fewer the model says its assumptions back, and nothing is told."""
FOLDS = 12
"""Parts of which each is predicted from all others; with up to as many candidates each is left out alone."""

COMMUNICATION = ("reduce_bytes", "gather_bytes", "collectives", "gather_calls", "gradient_hooks")
FIXED = ("micro_steps", "steps")


def explain_steps(contents: JournalContents, *, winner: str | None) -> StepShares | None:
    """What the model says of the latest sweep; None where there is no winner, or too little was measured.

    Args:
        contents: the journal.
        winner: id of the candidate whose step is taken apart.
    """
    launches = _completed(contents.measurements)
    if winner not in launches or len(launches) < FEWEST_FITTED:
        return None
    chosen = _chosen(list(launches), winner)
    candidates = {row.candidate.candidate_id: row.candidate for row in contents.sweep.plan_rows}
    points = [StepPoint(candidate=candidates[each], work=_work(candidates[each], contents.sweep)) for each in chosen]
    observed = [_observation(launches[each]) for each in chosen]
    model = StepTimeModel(points, device=contents.sweep.workload.device)
    return StepShares(
        candidate_id=winner,
        step_time_s=observed[0].step_time_s,
        seconds=_seconds(model, points[0], observed, contents.sweep, data_s=_data_s(launches[winner])),
        fitted_to=len(chosen),
        predicted_s=dict(zip(chosen, _from_the_others(model, observed), strict=True)),
        measured_s={each: seen.step_time_s for each, seen in zip(chosen, observed, strict=True)},
    )


def _completed(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """Candidate id -> its launch of the search that stands."""
    standing = {each.candidate_id: each for each in measurements if each.phase in (Phase.SEARCH, Phase.RETRY)}
    return {name: each for name, each in standing.items() if each.status is TrialStatus.COMPLETED and each.figures}


def _chosen(ids: list[str], winner: str) -> list[str]:
    """The winner first, and others at random."""
    others = [each for each in ids if each != winner]
    if len(others) >= MOST_FITTED:
        picked = np.random.default_rng(0).choice(len(others), MOST_FITTED - 1, replace=False)
        others = [others[index] for index in sorted(picked)]
    return [winner, *others]


def _work(candidate: Candidate, sweep: SweepStart) -> StepWork:
    workload = sweep.workload.of(candidate)
    config = render(candidate, workload=workload, base=sweep.base_ds_config)
    return step_work(candidate, workload, ZeroSettings.from_ds_config(config))


def _observation(launch: Measurement) -> Observation:
    figures = launch.figures
    assert figures is not None
    error = median_log_error(
        median=figures.step_time_s_median, iqr=figures.step_time_s_iqr, count=figures.measured_steps
    )
    return Observation(step_time_s=figures.step_time_s_median, log_error=error)


def _data_s(launch: Measurement) -> float | None:
    return None if launch.figures is None else launch.figures.data_s


def _seconds(
    model: StepTimeModel,
    point: StepPoint,
    observed: Sequence[Observation],
    sweep: SweepStart,
    *,
    data_s: float | None,
) -> dict[str, float]:
    """Kind -> seconds. The model's terms are stretched to the measured time less that of the data."""
    coefficients = model.fit(dict(enumerate(observed))).coefficients
    terms = {name: coefficients[name] * getattr(point.work, name) for name in coefficients}
    plain = _work(replace(point.candidate, activation_checkpoint_interval=0), sweep)
    again_s = coefficients["block_passes"] * (point.work.block_passes - plain.block_passes)
    kinds = {
        "compute": terms["compute_flops"] + terms["block_passes"] - again_s,
        "recompute": terms["recompute_flops"] + again_s,
        "communication": sum(terms[name] for name in COMMUNICATION),
        "optimizer": terms["optimizer_bytes"],
        "fixed cost of a step": sum(terms[name] for name in FIXED),
    }
    total_s = sum(kinds.values()) or 1.0
    left_s = max(0.0, observed[0].step_time_s - (data_s or 0.0))
    seconds = {kind: value / total_s * left_s for kind, value in kinds.items()}
    return seconds if data_s is None else seconds | {"data": min(data_s, observed[0].step_time_s)}


def _from_the_others(model: StepTimeModel, observed: Sequence[Observation]) -> list[float]:
    """Predicted step time of each candidate in seconds, from fits that leave out its fold."""
    predicted_s = [0.0] * len(observed)
    folds = min(FOLDS, len(observed))
    for fold in range(folds):
        others = {index: each for index, each in enumerate(observed) if index % folds != fold}
        forecast = model.fit(others).step_time_s
        for index in range(fold, len(observed), folds):
            predicted_s[index] = float(forecast[index])
    return predicted_s
