"""Injects the faults of `rank_faults`, and those between candidates, into one warm group after another."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

from processes import actor_pids
from rank_faults import RANK_FAULTS, RankFault

from raysweep.launch.attempts import run_candidate
from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.cluster import ray_session
from raysweep.launch.reaper import is_alive, marked
from raysweep.launch.warm_group import GroupSpec, WarmGroup
from raysweep.results.journal import Journal, read_journal
from raysweep.serde import to_dict
from raysweep.trial import Measurement, TrialStatus

SWEEP_ID = "chaos"
HUNG_AFTER_S = 120.0
"""A launch that took longer was not ended by its deadline of 20 s, the reaper's 15 s, and a cold start."""
RESTARTS = ("Broker", "TrainController", "Reaper")


@dataclass(slots=True)
class Tally:
    """What came of all injected faults."""

    injected: int = 0
    right: int = 0
    rows_lost: int = 0
    hangs: int = 0
    processes_left: int = 0
    shm_bytes_left: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, float]:
        """All counts and figures."""
        counts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "figures"}
        return counts | self.figures

    def note(self, name: str, wrong: str, wall_s: float) -> None:
        """Count one fault, and say on stderr how it ended."""
        self.injected += 1
        self.right += not wrong
        print(f"{'right' if not wrong else 'WRONG'}  {name}  ({wall_s:.0f} s)  {wrong}", file=sys.stderr, flush=True)


def run_rank_faults(tally: Tally, chosen: Callable[[str], bool]) -> None:
    """All faults whose name is chosen, in one Ray."""
    faults = [fault for fault in RANK_FAULTS if chosen(fault.name) and not fault.lacks_on_this_cpu()]
    between = [kind for kind in ("rank", *RESTARTS) if chosen(_between(kind))]
    if not faults and not between:
        return
    with tempfile.TemporaryDirectory() as name, ray_session(address=None, environment={"OMP_NUM_THREADS": "1"}):
        folder = Path(name)
        with chaos_group(folder) as client, Journal.open(folder / "journal.jsonl") as journal:
            runner = _Runner(client, journal, folder, tally)
            runner.time_a_clean_one("cold_start_s")
            for fault in faults:
                runner.inject(fault)
            for kind in between:
                runner.kill_between(kind)
        tally.rows_lost += runner.launches - len(read_journal(folder / "journal.jsonl").measurements)
        tally.processes_left += sum(is_alive(pid) for pid in runner.pids) + len(marked(SWEEP_ID))


@contextmanager
def chaos_group(folder: Path) -> Iterator[BrokerClient]:
    """A warm group of two ranks on half a CPU each; their logs go to `folder`."""
    spec = GroupSpec(
        sweep_id=SWEEP_ID,
        world_size=2,
        resources_per_worker={"CPU": 0.5},
        placement="PACK",
        device="cpu",
        log_folder=str(folder / "logs"),
    )
    with WarmGroup(spec) as client:
        yield client


def _between(kind: str) -> str:
    return f"{kind} killed between candidates"


@dataclass(slots=True)
class _Runner:
    client: BrokerClient
    journal: Journal
    folder: Path
    tally: Tally
    launches: int = 0
    pids: set[int] = field(default_factory=set)

    def inject(self, fault: RankFault) -> None:
        began_s = time.monotonic()
        launches = self._run(fault)
        self.tally.note(fault.name, fault.wrong_in(launches), time.monotonic() - began_s)
        if fault.ends == "OOM device" and fault.name.startswith("oom of rank 1"):
            self.time_a_clean_one("after_oom_s")

    def kill_between(self, kind: str) -> None:
        """SIGKILL a process while no candidate is under way; the next one must run to its end."""
        began_s = time.monotonic()
        self._run(RANK_FAULTS[0])
        pid = max(marked(SWEEP_ID)) if kind == "rank" else actor_pids(kind, under=os.getpid())[0]
        os.kill(pid, signal.SIGKILL)
        last = self._run(RANK_FAULTS[0])[-1]
        wrong = "" if last.status is TrialStatus.COMPLETED else f"{last.status}: {last.reason}"
        self.tally.note(_between(kind), wrong, time.monotonic() - began_s)

    def time_a_clean_one(self, figure: str) -> None:
        began_s = time.monotonic()
        self._run(RANK_FAULTS[0])
        self.tally.figures[figure] = round(time.monotonic() - began_s, 1)

    def _run(self, fault: RankFault) -> Sequence[Measurement]:
        measurements = run_candidate(self.client, fault.make_request(self.folder))
        for measurement in measurements:
            self.journal.append("measurement", to_dict(measurement))
            self.pids |= set(measurement.worker_pids)
            self.tally.hangs += measurement.wall_s > HUNG_AFTER_S
        self.launches += len(measurements)
        return measurements
