"""The journal survives a crash, and one driver at a time writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from results_builders import completed, failed, plan_row, sweep

from raysweep.errors import ConfigError, RaysweepError
from raysweep.results.journal import Journal, read_journal
from raysweep.results.lock import SweepLock
from raysweep.serde import to_dict
from raysweep.trial import GroupEnd, RankFailure, TrialStatus


def write(path: Path, *entries: tuple[str, object]) -> None:
    with Journal.open(path) as journal:
        for kind, record in entries:
            journal.append(kind, record if isinstance(record, dict) else to_dict(record))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    start, launch = sweep(plan_row(1)), completed("s2-k1-b1-g1")
    failure = RankFailure(rank=1, type_names=("builtins.ValueError",), message="no", data={"peak_bytes": 3})
    oom = failed("s2-k1-b2-g1", TrialStatus.OOM, failures=(failure,), reason="rank 1: ValueError: no")
    end = GroupEnd(group_id="g1", reason="search ended", started_at="a", ended_at="b", worker_pids=(1, 2))
    path = tmp_path / "a folder" / "journal.jsonl"
    write(path, ("sweep", start), ("measurement", launch), ("measurement", oom), ("group_end", end))
    contents = read_journal(path)
    assert contents.sweep == start
    assert contents.measurements == (launch, oom)
    assert contents.group_ends == (end,)
    assert contents.finished is None


@pytest.mark.parametrize("torn", [b'{"kind":"measurement","rec', b"\0\0\0\0\n", b'{"kind":"finished","record":{}}'])
def test_a_torn_last_line_is_ignored_and_cut(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, ("measurement", completed("a")))
    path.write_bytes(path.read_bytes() + torn)
    assert [each.candidate_id for each in read_journal(path).measurements] == ["a"]
    write(path, ("measurement", completed("b")))
    assert [each.candidate_id for each in read_journal(path).measurements] == ["a", "b"]
    assert len(path.read_bytes().splitlines()) == 2


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, ("finished", {"reason": "all launched"}))
    path.write_bytes(b"{not json\n" + path.read_bytes())
    with pytest.raises(RaysweepError, match="line 1 is damaged"):
        read_journal(path)


def test_a_resumed_sweep_is_no_longer_finished(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, ("sweep", sweep()), ("finished", {"reason": "12 trials spent"}))
    assert read_journal(path).finished == {"reason": "12 trials spent"}
    write(path, ("sweep", sweep(memory_budget_bytes=7)))
    assert read_journal(path).finished is None
    assert read_journal(path).sweep.memory_budget_bytes == 7


def test_no_journal_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RaysweepError, match="no sweep has written here"):
        read_journal(tmp_path / "journal.jsonl")


def test_a_second_driver_is_refused_by_host_and_pid(tmp_path: Path) -> None:
    path = tmp_path / "results" / "lock"
    with SweepLock.acquire(path) as lock:
        with pytest.raises(ConfigError, match=rf"host .+, process {os.getpid()}, alive at 20") as refusal:
            SweepLock.acquire(path)
        assert refusal.value.exit_code == 2
        lock.beat()
    SweepLock.acquire(path).release()


def test_a_dead_drivers_lock_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = f"from raysweep.results.lock import SweepLock; import os; SweepLock.acquire({str(path)!r}); os._exit(1)"
    subprocess.run([sys.executable, "-c", program], check=False)
    assert json.loads(path.read_text())["pid"] != os.getpid()
    with SweepLock.acquire(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize(("silent_s", "refused"), [(5, True), (500, False)])
def test_a_holder_on_another_host_counts_while_it_beats(tmp_path: Path, silent_s: float, refused: bool) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 7, "heartbeat_s": time.time() - silent_s}))
    if refused:
        with pytest.raises(ConfigError, match="host elsewhere, process 7"):
            SweepLock.acquire(path)
    else:
        SweepLock.acquire(path).release()
