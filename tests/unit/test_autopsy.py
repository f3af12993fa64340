"""How a dead process is explained, on processes that really die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysweep.launch.autopsy import examine
from raysweep.launch.node_folder import NodeFolder, abandoned_folders
from raysweep.launch.reaper import MARK, end, is_alive, marked, memory_kills
from raysweep.outcome import FATAL_SIGNAL, KILLED_FOR_MEMORY, PROCESS_DIED, judge
from raysweep.trial import FailureKind, MemoryKind, RankFailure, TrialStatus

FACTS = {"pid": 42, "node": "n0", "node_id": "id0", "log_path": "rank-0.log"}
DIED = RankFailure(rank=0, type_names=(PROCESS_DIED,), message="The actor died")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFolder:
    """A sweep's folder, and no other on this node."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return NodeFolder("a1")


def _dies(folder: NodeFolder, how: str) -> int:
    """The id of a process that left last words and then died."""
    script = (
        "import ctypes, os, signal, tempfile\n"
        "from raysweep.launch.node_folder import NodeFolder\n"
        f"tempfile.tempdir = {str(folder.path.parent)!r}\n"
        f"NodeFolder({folder.sweep_id!r}).leave_last_words()\n{how}\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    process.wait(timeout=60)
    return process.pid


@pytest.mark.parametrize(
    ("how", "exit_signal"),
    [
        ("ctypes.string_at(0)", signal.SIGSEGV),
        ("os.abort()", signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGFPE)", signal.SIGFPE),
        ("os.kill(os.getpid(), signal.SIGBUS)", signal.SIGBUS),
        ("os.kill(os.getpid(), signal.SIGILL)", signal.SIGILL),
    ],
)
def test_a_fatal_signal_leaves_its_name_and_its_stack(folder: NodeFolder, how: str, exit_signal: int) -> None:
    words = folder.last_words(_dies(folder, how))
    assert words is not None and words.exit_signal == exit_signal
    assert 'File "<string>", line 5' in words.stack


@pytest.mark.parametrize("how", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError"])
def test_other_ends_leave_no_word(folder: NodeFolder, how: str) -> None:
    assert folder.last_words(_dies(folder, how)) is None
    assert folder.last_words(1) is None


def test_an_unexplained_death_gets_its_cause() -> None:
    (failure,) = examine([DIED], [FACTS], lambda facts: {"exit_signal": 11, "killed_for_memory": False})
    assert failure.type_names == (FATAL_SIGNAL, PROCESS_DIED)
    assert (failure.exit_signal, failure.node, failure.log_path) == (11, "n0", "rank-0.log")
    assert failure.message == "process 42 ended by SIGSEGV; its stack is in its log"


def test_a_kill_by_the_kernel_for_memory_is_an_out_of_memory_of_the_host() -> None:
    outcome = judge(examine([DIED], [FACTS], lambda facts: {"exit_signal": None, "killed_for_memory": True}))
    assert (outcome.status, outcome.memory_kind) == (TrialStatus.OOM, MemoryKind.HOST)
    assert outcome.failures[0].type_names[0] == KILLED_FOR_MEMORY


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            None,
            "NodeLost: process 42 is gone, and its node does not answer: its link, its raylet or the machine is down",
        ),
        (
            {"exit_signal": None, "killed_for_memory": False},
            "ProcessDied: process 42 died without a word (killed from outside, or it called os._exit)",
        ),
    ],
)
def test_the_rest_is_infrastructure(found: dict[str, object] | None, message: str) -> None:
    outcome = judge(examine([DIED], [FACTS], lambda facts: found))
    assert outcome.failure_kind is FailureKind.INFRASTRUCTURE
    assert outcome.reason == f"rank 0 on n0: {message}"


def test_errors_that_came_with_words_are_left_alone() -> None:
    own = RankFailure(rank=0, type_names=("builtins.ValueError",), message="no")
    assert examine([own, DIED], [], lambda facts: pytest.fail("nobody has to be asked")) == [own, DIED]


def test_the_kernel_s_count_of_kills_for_memory(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 12\noom_kill 3\n")
    assert memory_kills(str(counters)) == 3
    assert memory_kills(str(tmp_path / "absent")) == 0


@pytest.fixture
def family(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A marked process that ignores SIGTERM, with a child whose parent is then gone."""
    script = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, MARK: "b2"})
    end_s = time.monotonic() + 60
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def test_workers_and_what_they_started_are_found_by_their_mark_and_ended(
    family: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    child = int((tmp_path / "child").read_text())
    family.kill()
    family.wait()
    assert marked("b2") == [child], "the orphan is found without its parent"
    assert end(marked("b2")) == []
    assert not is_alive(child)
    assert marked("another") == []


def test_only_folders_of_sweeps_that_are_over_are_taken(folder: NodeFolder, tmp_path: Path) -> None:
    shared = tmp_path / "buffer"
    shared.write_bytes(b"x")
    lock = folder.own()
    folder.note_shared_memory(shared)
    NodeFolder("new").path.mkdir()  # in the middle of being made
    assert list(abandoned_folders()) == []
    lock.close()
    (left,) = abandoned_folders()
    assert left.sweep_id == "a1"
    left.remove()
    assert not folder.path.exists() and not shared.exists()
