"""The searcher behind grid and random search: a fixed order, ended early when the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.search import Searcher


class OrderedSearcher(Searcher):  # type: ignore[misc]
    """Proposes candidates in a given order until they, or the seconds, are used up.

    `when_used_up` is the reason that those behind the order are told.

    The clock is looked at between candidates: one that runs is not cut off, so its work is not lost.
    """

    def __init__(
        self,
        order: Sequence[str],
        *,
        when_used_up: str = "every admitted candidate was launched",
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(metric="samples_per_s", mode="max")
        self._left = list(order)
        self._when_used_up = when_used_up
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self.stopped = ""
        """Why nothing more is proposed; empty while something is."""

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Ray Tune's hook: the next candidate's id, or FINISHED."""
        self.look_for_end()
        if self.stopped:
            return str(Searcher.FINISHED)
        return {"candidate_id": self._left.pop(0)}

    def look_for_end(self) -> None:
        """Stop where the order or the seconds are used up."""
        if not self._left:
            self.stop(self._when_used_up)
        if self._end is not None and self._clock() >= self._end:
            self.stop("the time budget was spent")

    def stop(self, reason: str) -> None:
        """Propose nothing more."""
        self.stopped = self.stopped or reason

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ray Tune's hook: a fixed order learns nothing."""

    def save(self, checkpoint_path: str) -> None:
        """Ray Tune's hook: resume goes by our own records, so there is nothing to keep."""

    def restore(self, checkpoint_path: str) -> None:
        """Ray Tune's hook; see `save`."""
