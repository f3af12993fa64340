"""The step-time model: what it recovers, how sure it says it is, and that measurements move it."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import astuple

import numpy as np
import pytest
from builders import make_candidate, make_workload

from raysweep.candidate import Candidate
from raysweep.search.prior import ASSUMED_RATES
from raysweep.search.step_time import NOISES, Observation, StepPoint, StepTimeModel
from raysweep.step_work import step_work
from raysweep.workload import gpt_shape
from raysweep.zero_settings import ZeroSettings

WORKLOAD = make_workload(
    shape=gpt_shape(blocks=12, hidden=768, vocab_size=32_000, positions=512, tied=True), sequence_length=512
)
CANDIDATES = [
    make_candidate(
        zero_stage=stage,
        activation_checkpoint_interval=interval,
        micro_batch_size_per_gpu=micro_batch,
        gradient_accumulation_steps=16 // micro_batch,
    )
    for stage, interval, micro_batch in itertools.product(range(4), (0, 1, 2), (1, 2, 4, 8, 16))
]
POINTS = [
    StepPoint(candidate=each, work=step_work(each, WORKLOAD, ZeroSettings(reduce_bucket_size=1_000_000)))
    for each in CANDIDATES
]


def _true_s(seed: int, *, spread: float = 1.0) -> list[float]:
    """Times of a machine whose coefficients are up to e^spread off the assumed ones."""
    rng = random.Random(seed)
    rates = [rate * math.exp(rng.uniform(-spread, spread)) for rate in astuple(ASSUMED_RATES["cpu"])]
    return [sum(work / rate for work, rate in zip(astuple(point.work), rates, strict=True)) for point in POINTS]


def _observed(times_s: list[float], indices: list[int]) -> dict[int, Observation]:
    return {index: Observation(step_time_s=times_s[index], log_error=0.0) for index in indices}


def test_without_measurements_the_prior_orders_by_work() -> None:
    forecast = StepTimeModel(POINTS, device="cpu").fit({})
    plain = CANDIDATES.index(_like(0, 0, 16))
    recomputed = CANDIDATES.index(_like(0, 1, 16))
    assert forecast.step_time_s[plain] < forecast.step_time_s[recomputed]
    assert forecast.fastest_s()[plain] < forecast.step_time_s[plain] < forecast.slowest_s()[plain]


def test_one_measurement_sets_the_scale_of_all() -> None:
    model = StepTimeModel(POINTS, device="cpu")
    before = model.fit({}).step_time_s
    after = model.fit(_observed([1000 * seconds for seconds in before.tolist()], [7])).step_time_s
    assert np.allclose(after / before, 1000, rtol=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_eight_measurements_without_noise_predict_the_rest(seed: int) -> None:
    times_s = _true_s(seed)
    indices = random.Random(seed).sample(range(len(POINTS)), 8)
    forecast = StepTimeModel(POINTS, device="cpu").fit(_observed(times_s, indices))
    errors = np.abs(forecast.step_time_s / np.array(times_s) - 1)
    assert np.median(errors) < 0.05, errors


def test_the_band_holds_most_of_what_was_not_measured() -> None:
    inside = []
    for seed in range(10):
        rng = random.Random(seed)
        times_s = [seconds * math.exp(rng.gauss(0, NOISES[0])) for seconds in _true_s(seed)]
        indices = rng.sample(range(len(POINTS)), 6)
        forecast = StepTimeModel(POINTS, device="cpu").fit(_observed(times_s, indices))
        rest = np.setdiff1d(np.arange(len(POINTS)), indices)
        truth = np.array(times_s)[rest]
        inside.append(np.mean((forecast.fastest_s()[rest] <= truth) & (truth <= forecast.slowest_s()[rest])))
    assert np.mean(inside) > 0.9


def test_a_measurement_narrows_its_family_more_than_others() -> None:
    model = StepTimeModel(POINTS, device="cpu")
    times_s = _true_s(1)
    few = [CANDIDATES.index(_like(stage, 0, 4)) for stage in range(4)]
    before = model.fit(_observed(times_s, few)).log_sd
    after = model.fit(_observed(times_s, [*few, CANDIDATES.index(_like(3, 1, 4))])).log_sd
    near, far = CANDIDATES.index(_like(3, 1, 8)), CANDIDATES.index(_like(0, 2, 8))
    assert after[near] / before[near] < after[far] / before[far]


def test_coefficients_are_never_negative_and_noise_shows() -> None:
    rng = random.Random(0)
    times_s = _true_s(0)
    noisy = [seconds * math.exp(rng.gauss(0, 0.3)) for seconds in times_s]
    indices = list(range(0, len(POINTS), 4))
    model = StepTimeModel(POINTS, device="cpu")
    calm, wild = model.fit(_observed(times_s, indices)), model.fit(_observed(noisy, indices))
    assert min(wild.coefficients.values()) >= 0
    assert wild.noise > calm.noise == NOISES[0]
    assert wild.log_sd.mean() > calm.log_sd.mean()


def _like(stage: int, interval: int, micro_batch: int) -> Candidate:
    return make_candidate(
        zero_stage=stage,
        activation_checkpoint_interval=interval,
        micro_batch_size_per_gpu=micro_batch,
        gradient_accumulation_steps=16 // micro_batch,
    )
