"""The contract of every launcher: a candidate goes in, the record of one launch comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from raysweep.trial import GroupEnd, LaunchRequest, Measurement


class Launcher(Protocol):
    """Runs candidates on worker groups, one at a time."""

    def launch(self, request: LaunchRequest) -> Measurement:
        """Measure one candidate once. A candidate that fails is a Measurement, too.

        Raises:
            GroupCannotStart: when no worker group comes up.
        """
        ...

    def recycle(self, reason: str) -> None:
        """End the worker group; the next launch starts in a fresh one."""
        ...

    def group_ends(self) -> list[GroupEnd]:
        """The groups that have ended so far, oldest first."""
        ...

    def waits_for(self) -> str:
        """What a candidate that was handed in waits for, e.g. workers that start; empty where it runs, or none was."""
        ...

    def bring_logs(self, measurement: Measurement, folder: Path) -> list[Path]:
        """Copy the logs of ranks that failed on other nodes into a folder of this one, where their nodes still answer;
        the copies."""
        ...

    def close(self, reason: str) -> None:
        """End the last group and free what the launcher holds."""
        ...
