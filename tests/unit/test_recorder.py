"""The results folder of a sweep: when it may be used, and what a resumed sweep keeps."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import make_measurement, write_sweep
from results_builders import failed

from raysweep.errors import ConfigError
from raysweep.plan import SweepPlan, make_plan
from raysweep.results.paths import local_folder
from raysweep.results.store import load_trials
from raysweep.search import recorder
from raysweep.search.recorder import Recorder, check_folder, check_same_sweep, installed_versions
from raysweep.sweep_file import load_sweep
from raysweep.trial import FailureKind, GroupEnd, Phase, TrialStatus


def _recorder(folder: Path, *, resume: bool = False, **changes: Any) -> Recorder:
    sweep = load_sweep(write_sweep(folder, **changes))
    return Recorder(sweep, make_plan(sweep), resume=resume)


def _recorded_once(folder: Path) -> None:
    first = _recorder(folder)
    first.measured([make_measurement("s0-k0-b1-g4")])
    first.close()


def _check(folder: Path, **changes: Any) -> None:
    sweep = load_sweep(write_sweep(folder, **changes))
    check_same_sweep(sweep, make_plan(sweep))


def _end(group_id: str) -> GroupEnd:
    return GroupEnd(group_id=group_id, reason="recycled", started_at="", ended_at="")


def test_the_folder_of_a_uri_is_a_local_one_of_its_name() -> None:
    assert local_folder("results/a") == "results/a"
    assert local_folder("s3://bucket/sweeps/a/") == "results/a"


def test_a_folder_that_holds_a_sweep_is_not_used_by_another(tmp_path: Path) -> None:
    _recorded_once(tmp_path)
    results = str(tmp_path / "results")
    with pytest.raises(ConfigError, match="holds a sweep already; go on with --resume, or start again with --overwr"):
        check_folder(results, resume=False, overwrite=False)
    check_folder(results, resume=True, overwrite=False)
    check_folder(results, resume=False, overwrite=True)


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no sweep to resume"):
        check_folder(str(tmp_path / "results"), resume=True, overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_sweep_keeps_what_was_measured(tmp_path: Path) -> None:
    _recorded_once(tmp_path)
    resumed = _recorder(tmp_path, resume=True)
    assert list(resumed.kept()) == ["s0-k0-b1-g4"]
    assert len(resumed.contents().sweeps) == 2
    resumed.close()


def test_an_overwritten_sweep_keeps_nothing(tmp_path: Path) -> None:
    _recorded_once(tmp_path)
    (tmp_path / "results" / "best").mkdir()
    again = _recorder(tmp_path)
    assert again.kept() == {} and again.contents().measurements == ()
    assert not (tmp_path / "results" / "best").exists()
    again.close()


def test_infrastructure_failures_and_unfinished_candidates_run_again(tmp_path: Path) -> None:
    lost = failed("lost", TrialStatus.FAILED, failure_kind=FailureKind.INFRASTRUCTURE)
    hung = failed("hung", TrialStatus.FAILED, failure_kind=FailureKind.HANG)
    others = [failed(status.lower(), status) for status in (TrialStatus.OOM, TrialStatus.TIMED_OUT)]
    opened = _recorder(tmp_path)
    opened.measured([make_measurement("done"), lost, hung, *others])
    assert set(opened.kept()) == {"done", "hung", "oom"}
    opened.close()


def test_the_last_launch_of_a_candidate_stands_and_confirmation_is_no_launch_of_the_search(tmp_path: Path) -> None:
    lost = failed("a", TrialStatus.FAILED, failure_kind=FailureKind.INFRASTRUCTURE)
    opened = _recorder(tmp_path)
    opened.measured([lost, failed("a", TrialStatus.OOM, phase=Phase.RETRY)])
    opened.measured([failed("b", TrialStatus.OOM, phase=Phase.CONFIRM, round=1)])
    assert {name: each.status for name, each in opened.kept().items()} == {"a": TrialStatus.OOM}
    opened.close()


def test_the_end_of_a_group_is_written_once(tmp_path: Path) -> None:
    opened = _recorder(tmp_path)
    opened.groups_ended([_end("g1")])
    opened.groups_ended([_end("g1"), _end("g2")])
    assert [end.group_id for end in opened.contents().group_ends] == ["g1", "g2"]
    opened.close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sequence_length": 8}, "the workload"),
        ({"environment": {"OMP_NUM_THREADS": 2}}, "the workload"),
        ({"workers.count": 4}, "the workload"),
        ({"memory_budget": "32MiB"}, "the memory budget"),
    ],
)
def test_resume_is_refused_where_measurements_would_not_compare(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    _recorded_once(tmp_path)
    journal = (tmp_path / "results" / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=f"cannot be resumed, these changed: {named}"):
        _check(tmp_path, **changes)
    assert (tmp_path / "results" / "journal.jsonl").read_bytes() == journal


def test_resume_is_refused_after_a_change_of_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _recorded_once(tmp_path)
    now = installed_versions() | {"torch": "9.9"}
    monkeypatch.setattr(recorder, "installed_versions", lambda: now)
    with pytest.raises(ConfigError, match=r"these changed: torch [0-9.+a-z]+ -> 9\.9; use --overwrite"):
        _check(tmp_path)


def test_versions_are_those_that_decide_a_measurement() -> None:
    assert set(installed_versions()) == {"python", "raysweep", "ray", "torch", "deepspeed", "pyarrow"}


def test_failures_are_kept_unless_they_are_to_be_tried_again(tmp_path: Path) -> None:
    first = _recorder(tmp_path)
    broken = failed("s0-k0-b1-g4", TrialStatus.FAILED, failure_kind=FailureKind.USER_CODE)
    first.measured([broken, failed("s0-k0-b2-g2", TrialStatus.OOM), make_measurement("s1-k0-b2-g2")])
    assert set(first.kept()) == {"s0-k0-b1-g4", "s0-k0-b2-g2", "s1-k0-b2-g2"}
    assert set(first.kept(retry_failed=True)) == {"s0-k0-b2-g2", "s1-k0-b2-g2"}
    first.close()


KILLED_WHILE_COMPACTING = """
import os, signal, sys
import signal
import subprocess
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from builders import make_measurement
from raysweep.plan import SweepPlan, make_plan
from raysweep.search.recorder import Recorder
from raysweep.sweep_file import load_sweep

sweep = load_sweep({sweep!r})
recorder = Recorder(sweep, make_plan(sweep), resume=False)
recorder.measured([make_measurement("s0-k0-b1-g4"), make_measurement("s1-k0-b1-g4")])
replace, calls = os.replace, []

def killing(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*arguments)

os.replace = killing
recorder.finished("done")
"""


def test_resume_runs_what_was_lost_or_never_started_and_failures_where_asked_b54(tmp_path: Path) -> None:
    first = _recorder(tmp_path, search={"method": "grid"})
    ids = [candidate.candidate_id for candidate in first_plan(tmp_path).admitted][:6]
    lost = failed(ids[4], TrialStatus.FAILED, failure_kind=FailureKind.INFRASTRUCTURE)
    wrong = failed(ids[2], TrialStatus.FAILED, failure_kind=FailureKind.USER_CODE)
    first.measured([*(make_measurement(each) for each in ids[:2]), wrong, failed(ids[3], TrialStatus.OOM), lost])
    first.close()
    again = _recorder(tmp_path, resume=True, search={"method": "grid"})
    assert [each for each in ids if each not in again.kept()] == [ids[4], ids[5]]
    assert [each for each in ids if each not in again.kept(retry_failed=True)] == [ids[2], ids[4], ids[5]]
    again.close()


def first_plan(folder: Path) -> SweepPlan:
    """The plan of the sweep in a folder."""
    return make_plan(load_sweep(folder / "sweep.yaml"))


def test_a_driver_killed_while_compacting_loses_no_row(tmp_path: Path) -> None:
    script = KILLED_WHILE_COMPACTING.format(paths=sys.path, sweep=str(write_sweep(tmp_path)))
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    resumed = _recorder(tmp_path, resume=True)
    assert set(resumed.kept()) == {"s0-k0-b1-g4", "s1-k0-b1-g4"}
    resumed.finished("done")
    resumed.close()
    records = {record.candidate_id: record.status for record in load_trials(str(tmp_path / "results"))}
    assert records["s0-k0-b1-g4"] == records["s1-k0-b1-g4"] == TrialStatus.COMPLETED
