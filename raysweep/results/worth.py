"""What a candidate is worth under the sweep's objective, and which of two is better."""

from __future__ import annotations

import math

from raysweep.objective import Goal, Objective
from raysweep.results.records import TrialRecord
from raysweep.units import format_bytes


def search_rate(record: TrialRecord) -> float:
    """Samples per second of the search, of a candidate that completed."""
    assert record.samples_per_s is not None, record.candidate_id
    return record.samples_per_s


def best_known_rate(record: TrialRecord) -> float:
    """The confirmed rate where there is one, else that of the search."""
    return record.confirmed_samples_per_s if record.confirmed_samples_per_s is not None else search_rate(record)


def sample_value(record: TrialRecord, objective: Objective) -> float:
    """What one sample/s of this candidate counts for; see `Objective.sample_value`."""
    tokens_per_s = record.nonpadding_tokens_per_s or record.tokens_per_s or search_rate(record)
    return objective.sample_value(world_size=record.world_size, tokens_per_sample=tokens_per_s / search_rate(record))


def speed_worth(record: TrialRecord, objective: Objective) -> float:
    """The best known rate in the objective's unit; for the least memory in samples/s."""
    return best_known_rate(record) * sample_value(record, objective)


def value(record: TrialRecord, objective: Objective) -> float:
    """What the objective measures, in its unit."""
    return float(record.peak_memory_bytes or 0) if objective.is_memory else speed_worth(record, objective)


def better_first(record: TrialRecord, objective: Objective) -> tuple[float, float]:
    """Key by which candidates are sorted, the best first."""
    rate = speed_worth(record, objective)
    peak_bytes = record.peak_memory_bytes or math.inf
    return (peak_bytes, -rate) if objective.is_memory else (-rate, peak_bytes)


def too_slow_because(record: TrialRecord, objective: Objective) -> str:
    """Why a completed candidate is too slow to win; empty where it is not."""
    least = objective.at_least_samples_per_s
    if least is None or best_known_rate(record) >= least:
        return ""
    where = "in confirmation" if record.confirmed else "in the search"
    return f"{best_known_rate(record):.2f} samples/s {where} is below the {least:g} that the objective asks for"


def format_value(amount: float, objective: Objective) -> str:
    """A value for people, with its unit."""
    if objective.is_memory:
        return f"{format_bytes(amount)} at {objective.at_least_samples_per_s:g} samples/s or more"
    digits = 2 if objective.goal in (Goal.SAMPLES_PER_S, Goal.NONPADDING_TOKENS_PER_S) else 0
    return f"{amount:.{digits}f} {objective.unit}"
