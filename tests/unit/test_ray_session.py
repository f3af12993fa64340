"""A Ray that does not start: tried once more where Ray gave up waiting, then one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray

from raysweep.errors import PreflightError
from raysweep.launch.cluster import ray_session


def failing(times: int, error: Exception) -> tuple[Callable[..., None], list[int]]:
    """A `ray.init` that fails so many times, and what it was asked."""
    asked: list[int] = []

    def init(**options: Any) -> None:
        asked.append(len(asked))
        if len(asked) <= times:
            raise error

    return init, asked


SLOW = Exception("The current node timed out during startup.")


def test_a_node_that_is_slow_to_start_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    init, asked = failing(1, SLOW)
    monkeypatch.setattr(ray, "init", init)
    with ray_session(address=None, environment={}):
        assert len(asked) == 2


def test_a_node_that_never_starts_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    init, asked = failing(2, SLOW)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(PreflightError, match="cannot start Ray on this machine: The current node timed out"):
        ray_session(address=None, environment={}).__enter__()
    assert len(asked) == 2


@pytest.mark.parametrize("error", [ConnectionError("refused"), ValueError("no such option")])
def test_what_will_not_change_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    init, asked = failing(1, error)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(PreflightError, match=f"cannot join Ray at this machine: {error}"):
        ray_session(address=None, environment={}).__enter__()
    assert len(asked) == 1


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    init, _ = failing(1, TypeError("unexpected keyword"))
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(TypeError, match="unexpected keyword"):
        ray_session(address=None, environment={}).__enter__()
