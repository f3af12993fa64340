"""Says what a sweep waits for, where nothing else has happened for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

from raysweep.launch.launcher import Launcher
from raysweep.search.observer import Observer

SAY_EVERY_S = 30.0


class Heartbeat:
    """Asks the launcher now and then, and tells the observer.

    Args:
        launcher: knows what the candidate in hand waits for.
        observer: is told, at most every `SAY_EVERY_S` seconds.
        clock: seconds that only grow.
    """

    def __init__(self, launcher: Launcher, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self._launcher = launcher
        self._observer = observer
        self._clock = clock
        self._asked_s = clock()

    def beat(self) -> None:
        """Call it as often as is handy."""
        if self._clock() - self._asked_s < SAY_EVERY_S:
            return
        self._asked_s = self._clock()
        waits_for = self._launcher.waits_for()
        if waits_for:
            self._observer.note(waits_for)
