"""Errors carry their data between processes, and know their exit code."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from raysweep import errors
from raysweep.errors import ConfigError, RaysweepError, nearest_name

DATA = {
    "RaysweepError": {"message": "it is so"},
    "ConfigError": {"key": "space.zero_stage", "value": 4, "rule": "is no stage", "nearest": 3},
    "NothingSucceeded": {"message": "no candidate completed"},
    "GroupCannotStart": {"reason": "0 of 2 workers were up"},
    "PreflightError": {"message": "no cluster"},
    "OutOfMemory": {"phase": "backward", "peak_bytes": 3 * 2**30, "budget_bytes": 2**30, "rank": 1},
    "NoSteps": {"measured": 0, "wanted": 8},
    "NumericsError": {"message": "the loss is nan"},
    "StorageError": {"path": "results/a/journal.jsonl", "reason": "No space left on device"},
    "CheckpointMismatch": {"expected": 4, "counted": 0, "interval": 1},
}


def _kinds(base: type[RaysweepError] = RaysweepError) -> Iterator[type[RaysweepError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from _kinds(kind)


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
def test_it_pickles_there_and_back(kind: type[RaysweepError]) -> None:
    error = kind(**DATA[kind.__name__])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.data) == (str(error), error.data)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("RaysweepError", 1),
        ("ConfigError", 2),
        ("NothingSucceeded", 3),
        ("GroupCannotStart", 3),
        ("PreflightError", 4),
    ],
)
def test_exit_codes(name: str, code: int) -> None:
    assert getattr(errors, name).exit_code == code


def test_a_config_error_names_key_value_rule_and_nearest() -> None:
    assert str(ConfigError(**DATA["ConfigError"])) == "space.zero_stage: 4: is no stage (nearest valid: 3)"
    assert str(ConfigError(key="model", rule="is required")) == "model: is required"


def test_out_of_memory_names_phase_and_sizes() -> None:
    text = str(errors.OutOfMemory(**DATA["OutOfMemory"]))
    assert "backward: peak of 3.00 GiB is above the budget of 1.00 GiB" in text


def test_nearest_name() -> None:
    assert nearest_name("sapce", ["space", "search"]) == "space"
    assert nearest_name("zzz", ["space", "search"]) is None
