"""Predicts the step time of every candidate from those that were measured: linear in the work, with residuals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import nnls

from raysweep.candidate import Candidate
from raysweep.search.prior import ASSUMED_RATES
from raysweep.serde import canonical_json
from raysweep.step_work import StepWork

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

PRIOR_SPREAD = 1.0
"""Standard deviation of a coefficient around its assumed value, relative to it."""
SENT_FACTORS = (1.0, 0.2, 5.0, 25.0)
"""How much dearer than assumed all communication may be, next to computation. Links differ more than devices do."""
PASS_FACTORS = (1.0, 5.0, 25.0)
"""The same of what a pass costs however small it is."""
FACTOR_SPREAD = math.log(5)
"""Standard deviation of the logarithm of a factor before anything ran."""

SMOOTH_OVER_DOUBLINGS = 1.2
"""Length, in doublings of the micro-batch, over which the model's error is taken to change."""
PROGRAM_SD = 0.25
"""Standard deviation of the log error that candidates share whose program is the same: attention, compiler, workers.

It counts only where a search has several programs: compiled blocks may be twice as fast, and how much is not counted
work. With one program the scale of the coefficients has it.
"""
RESIDUAL_SD = {"micro_batch": 0.16, "stage": 0.06, "family": 0.05, "family_micro_batch": 0.04, "own": 0.03}
"""Standard deviations of the log error, by what two candidates must share for it to carry over.

The micro-batch (caches, alignment), the stage, the family (stage, interval and further axes) as a whole and by
micro-batch; `own` is each candidate's alone.
"""
NOISES = (0.03, 0.06, 0.12, 0.24)
"""By how much a launch may differ from the next of the same candidate, as a standard deviation of the log time.

The fit takes the one that explains what was measured best; one candidate on shared CPUs differs by 8 to 20 %.
"""
BAND_Z = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A candidate with its counted work."""

    candidate: Candidate
    work: StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A measured step time."""

    step_time_s: float
    log_error: float
    """Standard error of its logarithm, from the spread of the steps; the noise between launches comes on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Predicted step times of all points, in their order."""

    step_time_s: Array
    log_sd: Array
    """Standard deviation of the logarithm of what a launch would show, its own noise left out."""
    coefficients: Mapping[str, float]
    """Kind of work -> seconds a unit."""
    noise: float
    """Standard deviation of the log time between launches of one candidate, as the fit takes it: one of `NOISES`."""

    def fastest_s(self, z: float = BAND_Z) -> Array:
        """The lower end of each band, in seconds."""
        return np.asarray(self.step_time_s * np.exp(-z * self.log_sd))

    def slowest_s(self, z: float = BAND_Z) -> Array:
        """The upper end."""
        return np.asarray(self.step_time_s * np.exp(z * self.log_sd))


class StepTimeModel:
    """Fits seconds a unit of work, non-negative, in relative error, and what the sum of them leaves unexplained.

    The time of a step is sum_j c_j work_j. Its coefficients have the proportions of `ASSUMED_RATES` as a prior and are
    fitted by non-negative least squares, whitened by the covariance of the residuals (`RESIDUAL_SD`). The residuals
    then carry over to candidates that share something with a measured one; the band is that of universal kriging
    (Rasmussen and Williams, Gaussian Processes for Machine Learning, section 2.7), the bounds on coefficients left out.

    Args:
        points: all candidates of the search.
        device: device type of the workers.
    """

    def __init__(self, points: Sequence[StepPoint], *, device: str) -> None:
        self._work = np.array([astuple(point.work) for point in points], dtype=np.float64).reshape(len(points), -1)
        self._prior = 1 / np.array(astuple(ASSUMED_RATES[device]), dtype=np.float64)
        self._residuals = _Residuals([point.candidate for point in points])

    def start_from(self, rates: StepWork) -> None:
        """Take other rates than the assumed ones as the prior: units of work a second."""
        self._prior = 1 / np.array(astuple(rates), dtype=np.float64)

    def fit(self, observed: Mapping[int, Observation]) -> Forecast:
        """The forecast after measurements, each under the index of its point; without any, that of the prior."""
        if not observed:
            prior_s = self._work @ self._prior
            log_sd = self._relative_sd(prior_s, np.diag((PRIOR_SPREAD * self._prior) ** 2))
            log_sd = np.hypot(log_sd, math.sqrt(self._residuals.variance))
            return self._forecast(prior_s, log_sd, self._prior, NOISES[0])
        at = np.array(list(observed))
        cross = self._residuals.covariance(at)
        times_s = np.array([each.step_time_s for each in observed.values()])
        errors = np.array([each.log_error for each in observed.values()])
        relative = self._work[at] / times_s[:, None]

        def fitted(factors: tuple[float, float], noise: float) -> _Fit:
            covariance = cross[at] + np.diag(errors**2 + noise**2)
            return _Fit.of(relative, self._prior * _multiples(factors), covariance, factors=factors, noise=noise)

        # One after the other: all pairs of them would take four times as long and hardly differ.
        tried = [fitted(factors, NOISES[1]) for factors in itertools.product(SENT_FACTORS, PASS_FACTORS)]
        factors = max(tried, key=lambda fit: fit.log_evidence).factors
        best = max((fitted(factors, noise) for noise in NOISES), key=lambda fit: fit.log_evidence)
        return self._krige(best, at, times_s, cross)

    def _krige(self, fitted: _Fit, at: Indices, times_s: Array, cross: Array) -> Forecast:
        """Carry the residuals over to all points, with the variance that is left."""
        linear_s = np.maximum(self._work @ fitted.coefficients, 1e-12)
        step_time_s = linear_s * np.exp(cross @ fitted.solve(np.log(times_s / linear_s[at])))
        explained = np.einsum("ij,ji->i", cross, fitted.solve(cross.T))
        left = np.maximum(self._residuals.variance - explained, 1e-6)
        relative = self._work / linear_s[:, None]
        unmatched = relative - cross @ fitted.solve(relative[at])
        from_coefficients = np.einsum("ij,jk,ik->i", unmatched, fitted.coefficient_covariance, unmatched)
        log_sd = np.sqrt(left + np.maximum(from_coefficients, 0.0))
        return self._forecast(step_time_s, log_sd, fitted.coefficients, fitted.noise)

    def _relative_sd(self, times_s: Array, covariance: Array) -> Array:
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", self._work, covariance, self._work)) / times_s)

    @staticmethod
    def _forecast(step_time_s: Array, log_sd: Array, coefficients: Array, noise: float) -> Forecast:
        names = [field.name for field in fields(StepWork)]
        return Forecast(
            step_time_s=step_time_s,
            log_sd=log_sd,
            coefficients=dict(zip(names, coefficients.tolist(), strict=True)),
            noise=noise,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Coefficients with their covariance, under noise of one size, and how well that size explains the times."""

    coefficients: Array
    coefficient_covariance: Array
    factor: Array
    """Lower Cholesky factor of the covariance of what the linear part leaves."""
    factors: tuple[float, float]
    noise: float
    log_evidence: float
    """Log marginal likelihood of the times, bounds left out; factors of 1 and less noise are likelier at first."""

    @classmethod
    def of(
        cls, relative: Array, prior: Array, covariance: Array, *, factors: tuple[float, float], noise: float
    ) -> _Fit:
        """Fit relative @ coefficients to ones; rows are observations, columns kinds of work over the time.

        The prior gives the proportions of the coefficients; its scale is that of the times.
        """
        prior = prior / math.exp(float(np.mean(np.log(relative @ prior))))
        factor: Array = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        # In units of the prior, so that all columns are of one size.
        rows = solve_triangular(factor, relative * prior, lower=True)
        target = solve_triangular(factor, np.ones(len(relative)), lower=True)
        ones = np.ones(len(prior))
        stacked = np.vstack([rows, np.eye(len(prior)) / PRIOR_SPREAD])
        solution, _ = nnls(stacked, np.concatenate([target, ones / PRIOR_SPREAD]))
        marginal = np.eye(len(target)) + PRIOR_SPREAD**2 * rows @ rows.T
        miss = target - rows @ ones
        log_evidence = -(miss @ np.linalg.solve(marginal, miss)) / 2
        log_evidence -= np.linalg.slogdet(marginal)[1] / 2 + np.log(np.diag(factor)).sum()
        log_evidence -= sum((math.log(factor) / FACTOR_SPREAD) ** 2 for factor in factors) / 2
        log_evidence -= math.log(noise / NOISES[0]) ** 2 / 2
        return cls(
            coefficients=solution * prior,
            coefficient_covariance=np.linalg.inv(stacked.T @ stacked) * np.outer(prior, prior),
            factor=factor,
            factors=factors,
            noise=noise,
            log_evidence=float(log_evidence),
        )

    def solve(self, values: Array) -> Array:
        """The inverse of the covariance times values."""
        return np.asarray(cho_solve((self.factor, True), values))


class _Residuals:
    """How the log errors of two candidates go together."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        further = [canonical_json(each.further_axes) for each in candidates]
        families = [
            f"{each.zero_stage} {each.activation_checkpoint_interval} {axes}"
            for each, axes in zip(candidates, further, strict=True)
        ]
        self._stages = np.array([each.zero_stage for each in candidates])
        self._families = np.unique(families, return_inverse=True)[1]
        self._programs = np.unique([canonical_json(each.program) for each in candidates], return_inverse=True)[1]
        self._program_variance = PROGRAM_SD**2 if len(set(self._programs)) > 1 else 0.0
        self._doublings = np.log2([each.micro_batch_size_per_gpu for each in candidates])
        self.variance = sum(sd**2 for sd in RESIDUAL_SD.values()) + self._program_variance

    def covariance(self, at: Indices) -> Array:
        """Of all candidates with those at `at`: a row each, a column each."""
        near = np.exp(-(((self._doublings[:, None] - self._doublings[at]) / SMOOTH_OVER_DOUBLINGS) ** 2) / 2)
        same_family = self._families[:, None] == self._families[at]
        shared = {
            "micro_batch": near,
            "stage": self._stages[:, None] == self._stages[at],
            "family": same_family,
            "family_micro_batch": same_family * near,
            "own": np.arange(len(self._stages))[:, None] == at,
        }
        same_program = self._programs[:, None] == self._programs[at]
        known = sum(RESIDUAL_SD[name] ** 2 * matrix for name, matrix in shared.items())
        return np.asarray(known + self._program_variance * same_program, dtype=np.float64)


def _multiples(factors: tuple[float, float]) -> Array:
    """What each assumed coefficient is multiplied by, for a factor of communication and one of passes."""
    sent, passes = factors
    of = dict.fromkeys(("reduce_bytes", "gather_bytes", "collectives", "gather_calls"), sent)
    of |= dict.fromkeys(("block_passes", "micro_steps"), passes)
    return np.array([of.get(field.name, 1.0) for field in fields(StepWork)])
