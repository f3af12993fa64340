"""Several worker groups side by side, each on nodes of its own, as one launcher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from raysweep.launch.launcher import Launcher
from raysweep.launch.warm_group import GroupSpec, WarmGroup
from raysweep.trial import GroupEnd, LaunchRequest, Measurement


@dataclass(frozen=True, slots=True)
class ConcurrentGroups:
    """A `Launcher` whose own candidates run on the first of its groups, and which answers for all of them."""

    groups: Sequence[Launcher]

    def launch(self, request: LaunchRequest) -> Measurement:
        """See `Launcher.launch`."""
        return self.groups[0].launch(request)

    def recycle(self, reason: str) -> None:
        """See `Launcher.recycle`."""
        self.groups[0].recycle(reason)

    def group_ends(self) -> list[GroupEnd]:
        """See `Launcher.group_ends`."""
        return sorted((end for group in self.groups for end in group.group_ends()), key=lambda end: end.ended_at)

    def waits_for(self) -> str:
        """See `Launcher.waits_for`."""
        waiting = [(number, group.waits_for()) for number, group in enumerate(self.groups, 1)]
        if len(waiting) == 1:
            return waiting[0][1]
        return "; ".join(f"group {number}: {what}" for number, what in waiting if what)

    def bring_logs(self, measurement: Measurement, folder: Path) -> list[Path]:
        """See `Launcher.bring_logs`. A log that is there already is not brought again."""
        return [copy for group in self.groups for copy in group.bring_logs(measurement, folder)]

    def close(self, reason: str) -> None:
        """See `Launcher.close`."""
        for group in self.groups:
            group.close(reason)


@contextmanager
def concurrent_groups(specs: Sequence[GroupSpec]) -> Iterator[tuple[ConcurrentGroups, list[str]]]:
    """The groups for the length of a block, with a line for each thing that was tidied up before; then all are gone."""
    with ExitStack() as stack:
        groups = [WarmGroup(spec) for spec in specs]
        clients = [stack.enter_context(group) for group in groups]
        yield ConcurrentGroups(clients), [line for group in groups for line in group.tidied]
