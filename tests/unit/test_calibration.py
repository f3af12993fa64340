"""Factor, constant and band of measured trials."""

from __future__ import annotations

import random

import pytest

from raysweep.calibration import Calibration, Pair, calibrate

MIB = 1024**2


def pairs(count: int, *, factor: float, constant: float, noise: float = 0.0, seed: int = 0) -> list[Pair]:
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        predicted = draw.randint(100, 1000) * MIB
        measured = (factor * predicted + constant * MIB) * (1 + draw.gauss(0, noise))
        found.append(Pair(predicted_bytes=predicted, measured_bytes=round(measured)))
    return found


def test_without_trials_nothing_is_known() -> None:
    assert calibrate([]) == Calibration()
    assert Calibration().of(7) == 7


def test_factor_and_constant_are_told_apart() -> None:
    found = calibrate(pairs(12, factor=1.1, constant=200))
    assert found.factor == pytest.approx(1.1, rel=1e-6)
    assert found.constant_bytes == pytest.approx(200 * MIB, rel=1e-5)
    assert found.band < 1e-6 and found.trials == 12


def test_few_trials_give_a_factor_and_two_give_none() -> None:
    found = calibrate(pairs(4, factor=1.25, constant=0))
    assert (found.factor, found.constant_bytes) == (pytest.approx(1.25), 0.0)
    assert calibrate(pairs(2, factor=1.25, constant=0)).factor == 1.0


def test_one_odd_trial_does_not_move_the_factor_of_few() -> None:
    odd = [*pairs(6, factor=1.0, constant=0), Pair(predicted_bytes=100 * MIB, measured_bytes=400 * MIB)]
    found = calibrate(odd)
    assert found.factor == pytest.approx(1.0)
    assert found.band == pytest.approx(3.0)


def test_predictions_of_one_size_give_no_constant() -> None:
    alike = [Pair(predicted_bytes=100 * MIB + each, measured_bytes=120 * MIB + each) for each in range(10)]
    assert calibrate(alike).constant_bytes == 0.0


def test_the_band_covers_what_it_promises() -> None:
    kept = total = 0
    for seed in range(200):
        drawn = pairs(25, factor=1.05, constant=50, noise=0.03, seed=seed)
        found, further = calibrate(drawn[:24]), drawn[24]
        assert found.coverage == pytest.approx(0.95)
        kept += abs(further.measured_bytes / found.of(further.predicted_bytes) - 1) <= found.band
        total += 1
    assert kept / total >= 0.92


def test_many_trials_are_split_in_two() -> None:
    found = calibrate(pairs(3000, factor=1.05, constant=50, noise=0.03))
    assert found.coverage == pytest.approx(0.95, abs=1e-3)
    assert 0.055 < found.band < 0.065 and found.trials == 3000


def test_few_trials_promise_less() -> None:
    assert calibrate(pairs(4, factor=1.0, constant=0, noise=0.01)).coverage == pytest.approx(4 / 5)
