"""Runs candidates in this very process, as the only rank, on CPU: the same contract without a cluster."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import torch.distributed as dist

from raysweep.clock import utc_now
from raysweep.launch.records import Answer, measurement_of
from raysweep.launch.worker_loop import describe_failure
from raysweep.measurement import RankReport
from raysweep.probe import Probe
from raysweep.serde import to_dict
from raysweep.trial import GroupEnd, LaunchRequest, Measurement, RankFailure
from raysweep.worker.loop import measure_candidate
from raysweep.worker.micro_benchmark import micro_benchmark
from raysweep.worker.process import RankContext, prepare_process

NODE = "this process"


class InProcessLauncher:
    """A `Launcher` for fast tests and first looks. It cannot be killed at a deadline, and no group of it is fresh."""

    def __init__(self) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        self._process: RankContext = prepare_process(rank=0, local_rank=0, local_world_size=1, world_size=1, node=NODE)
        self._ends: list[GroupEnd] = []
        self._position = 0
        self._probe: Probe | None = None
        self._started_at = utc_now()

    def launch(self, request: LaunchRequest) -> Measurement:
        """See `Launcher.launch`."""
        assert request.workload.world_size == 1, "one process is one rank"
        self._position += 1
        if self._probe is None:
            workload = request.workload
            self._probe = micro_benchmark(self._process, device=workload.device, precision=workload.precision)
        started_at, began_s = utc_now(), time.perf_counter()
        reports: list[RankReport] = []
        failures: list[RankFailure] = []
        try:
            reports.append(measure_candidate(request, self._process))
        except (Exception, SystemExit) as error:  # stands for the process edge that the other launchers have
            traceback.print_exc()
            failures.append(describe_failure(error, rank=0, node=NODE))
        answer = Answer(
            reports=reports,
            failures=failures,
            group_id=self._group_id(),
            position_in_group=self._position,
            ranks=[{"pid": os.getpid(), "node": NODE, "log_path": "", "probe": to_dict(self._probe)}],
            started_at=started_at,
            wall_s=time.perf_counter() - began_s,
        )
        return measurement_of(request, answer)

    def recycle(self, reason: str) -> None:
        """See `Launcher.recycle`; here a group is only a name."""
        self._ends.append(
            GroupEnd(
                group_id=self._group_id(),
                reason=reason,
                started_at=self._started_at,
                ended_at=utc_now(),
                worker_pids=(os.getpid(),),
                nodes=(NODE,),
            )
        )
        self._position, self._started_at = 0, utc_now()

    def group_ends(self) -> list[GroupEnd]:
        """See `Launcher.group_ends`."""
        return self._ends

    def waits_for(self) -> str:
        """See `Launcher.waits_for`; here a candidate runs at once."""
        return ""

    def bring_logs(self, measurement: Measurement, folder: Path) -> list[Path]:
        """See `Launcher.bring_logs`; there is no other node."""
        return []

    def close(self, reason: str) -> None:
        """See `Launcher.close`."""
        self.recycle(reason)

    def _group_id(self) -> str:
        return f"in-process-{os.getpid()}-{len(self._ends)}"
