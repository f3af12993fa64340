"""Makes the launch request of a candidate: the one place that decides what a worker group is handed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raysweep.candidate import Candidate
from raysweep.ds_config import render
from raysweep.plan import deadline_s
from raysweep.sweep_file import Sweep
from raysweep.trial import LaunchRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMaker:
    """Launch requests of one sweep under one budget."""

    sweep: Sweep
    memory_budget_bytes: int | None

    def make(self, candidate: Candidate) -> LaunchRequest:
        """The request of one candidate."""
        workload = self.sweep.workload.of(candidate)
        return LaunchRequest(
            candidate=candidate,
            workload=workload,
            ds_config=render(candidate, workload=workload, base=self.sweep.base_ds_config),
            window=self.sweep.file.measure.window(),
            memory_budget_bytes=self.memory_budget_bytes,
            deadline_s=deadline_s(candidate, self.sweep),
        )

    def make_all(self, candidates: Iterable[Candidate]) -> dict[str, LaunchRequest]:
        """candidate_id -> its request, in the order given."""
        return {candidate.candidate_id: self.make(candidate) for candidate in candidates}
