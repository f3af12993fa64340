"""A launcher without workers: what happens to a candidate is told in verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builders import make_figures

from raysweep.measurement import Figures
from raysweep.outcome import FATAL_SIGNAL, PROCESS_DIED, judge
from raysweep.trial import GroupEnd, LaunchRequest, Measurement, RankFailure, TrialStatus

Mishap = Callable[[LaunchRequest, int], RankFailure | None]
"""From a request and the number of its launch, counted from 1 over all launches: what goes wrong, if anything."""


class FakeLauncher:
    """A `Launcher` whose candidates complete at once, unless told otherwise."""

    def __init__(self) -> None:
        self.launched: list[LaunchRequest] = []
        self.recycled: list[str] = []
        self.pending = ""
        self._mishaps: list[Mishap] = []
        self._position = 0

    def runs_out_of_memory_above(self, micro_batch_size_per_gpu: int) -> FakeLauncher:
        """Larger micro-batches are OOM, as torch says it on CUDA."""
        failure = RankFailure(rank=0, type_names=("torch.OutOfMemoryError",), message="CUDA out of memory")
        self._mishaps.append(
            lambda request, _: (
                failure if request.candidate.micro_batch_size_per_gpu > micro_batch_size_per_gpu else None
            )
        )
        return self

    def loses_a_rank_at(self, *launches: int) -> FakeLauncher:
        """The process of rank 1 dies in these launches; the group ends with it."""
        failure = RankFailure(rank=1, type_names=(PROCESS_DIED,), message="killed by SIGKILL")
        self._mishaps.append(lambda _, number: failure if number in launches else None)
        return self

    def ends_by_signal_at(self, exit_signal: int, *launches: int) -> FakeLauncher:
        """A signal of its own making ends rank 1 in these launches."""
        failure = RankFailure(
            rank=1, type_names=(FATAL_SIGNAL, PROCESS_DIED), message="process 7 ended", exit_signal=exit_signal
        )
        self._mishaps.append(lambda _, number: failure if number in launches else None)
        return self

    def launch(self, request: LaunchRequest) -> Measurement:
        """See `Launcher.launch`."""
        self._position += 1
        self.launched.append(request)
        failure = next(filter(None, (mishap(request, len(self.launched)) for mishap in self._mishaps)), None)
        position = self._position
        if failure is None:
            return self._measurement(request, position, figures=make_figures())
        if PROCESS_DIED in failure.type_names:
            self._position = 0
        return self._measurement(request, position, failure=failure)

    def _measurement(
        self,
        request: LaunchRequest,
        position: int,
        *,
        figures: Figures | None = None,
        failure: RankFailure | None = None,
    ) -> Measurement:
        outcome = judge([failure]) if failure else None
        return Measurement(
            candidate_id=request.candidate.candidate_id,
            phase=request.phase,
            round=request.round,
            status=outcome.status if outcome else TrialStatus.COMPLETED,
            failure_kind=outcome.failure_kind if outcome else None,
            memory_kind=outcome.memory_kind if outcome else None,
            reason=outcome.reason if outcome else "",
            failures=outcome.failures if outcome else (),
            figures=figures,
            group_id=f"g{len(self.recycled)}",
            position_in_group=position,
        )

    def recycle(self, reason: str) -> None:
        """See `Launcher.recycle`."""
        self.recycled.append(reason)
        self._position = 0

    def group_ends(self) -> list[GroupEnd]:
        """See `Launcher.group_ends`."""
        return [
            GroupEnd(group_id=f"g{number}", reason=reason, started_at="", ended_at="")
            for number, reason in enumerate(self.recycled)
        ]

    def waits_for(self) -> str:
        """See `Launcher.waits_for`."""
        return self.pending

    def bring_logs(self, measurement: Measurement, folder: Path) -> list[Path]:
        """See `Launcher.bring_logs`; there is no other node."""
        return []

    def close(self, reason: str) -> None:
        """See `Launcher.close`."""
        self.recycle(reason)
