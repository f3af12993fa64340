"""Faults inside ranks end as the table of outcomes says: a few in a real group, the others in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_faults import RANK_FAULTS, RankFault

from raysweep.launch.attempts import run_candidate
from raysweep.launch.launcher import Launcher
from raysweep.trial import TrialStatus

BY_NAME = {fault.name: fault for fault in RANK_FAULTS}
IN_A_GROUP = (
    "oom of rank 1 in forward while rank 0 waits in a collective",
    "exception in the factory on one rank",
    "SIGSEGV, twice",
    "a rank that ignores SIGTERM",
)
LIVES_ON = {
    *("none", "value_error", "recursion", "exit", "device_oom", "memory_error", "allocator", "checkpoint_error"),
    *("disk_full", "nan", "overflow_once", "overflow_always", "uneven", "wrong_type"),
}
"""Kinds that a process survives."""
IN_PROCESS = [fault for fault in RANK_FAULTS if fault.inject["kind"] in LIVES_ON]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A warm group of two ranks."""
    from run_ranks import chaos_group

    from raysweep.launch.cluster import ray_session

    folder = tmp_path_factory.mktemp("faults")
    with ray_session(address=None, environment={"OMP_NUM_THREADS": "1"}), chaos_group(folder) as client:
        yield client


@pytest.mark.ray
@pytest.mark.parametrize("name", IN_A_GROUP)
def test_a_fault_of_one_rank_ends_the_launch_and_the_next_runs_in_new_processes_b12_b41_b50_b51(
    group: Launcher, name: str, tmp_path: Path
) -> None:
    before = group.launch(BY_NAME["nothing at all"].make_request(tmp_path))
    began_s = time.monotonic()
    launches = run_candidate(group, BY_NAME[name].make_request(tmp_path))
    if name == IN_A_GROUP[0]:
        assert time.monotonic() - began_s < 30  # the limit that B12 and B51 name
    assert not BY_NAME[name].wrong_in(launches), BY_NAME[name].wrong_in(launches)
    after = group.launch(BY_NAME["nothing at all"].make_request(tmp_path))
    assert after.status is TrialStatus.COMPLETED
    assert not set(after.worker_pids) & set(before.worker_pids)


@pytest.mark.ray
def test_a_rank_with_fewer_batches_cycles_and_never_hangs_b59(group: Launcher, tmp_path: Path) -> None:
    fault = BY_NAME["fewer batches on rank 1"]
    launch = group.launch(fault.make_request(tmp_path))
    assert not fault.wrong_in([launch]), fault.wrong_in([launch])


@pytest.mark.parametrize("fault", IN_PROCESS, ids=[fault.name for fault in IN_PROCESS])
def test_the_table_of_outcomes(fault: RankFault, tmp_path: Path) -> None:
    from raysweep.launch.in_process import InProcessLauncher

    if lacks := fault.lacks_on_this_cpu():
        pytest.skip(lacks)
    launches = run_candidate(InProcessLauncher(), fault.make_request(tmp_path, world_size=1))
    wrong = fault.wrong_in(launches, world_size=1)
    assert not wrong, wrong
