"""Faults around whole sweeps: each function injects one into `raysweep run` and says what was wrong then."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from processes import actor_pids, used_bytes
from ray.cluster_utils import Cluster
from sweeps import (
    Run,
    alive,
    descendants,
    kill,
    measurements,
    run,
    start,
    trials,
    wait_for_line,
    worker_logs,
    write_sweep,
)

from raysweep.results.journal import read_journal
from raysweep.units import GIB, MIB
from raysweep.worker.build_folder import build_folder

HERE = Path(__file__).parent
FOUR = {"zero_stage": [1, 2], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [2, 4]}
GRID = {"method": "grid", "confirm": False}
SLOW = {"measured_seconds": 3, "warmup_max_steps": 4, "deadline_seconds": 120}
"""Long enough to catch a candidate at work."""
UNCONFIRMED = 5

SweepFault = Callable[[Path], str]
"""Injects a fault into a sweep in a folder; what was wrong then, empty where nothing was."""


def driver_killed_in_the_middle_of_a_write(folder: Path) -> str:
    """Half a row is in the journal; the rows before it are kept, and the sweep goes on."""
    path = write_sweep(folder, space=FOUR, search=GRID)
    torn = start(path, command=(str(HERE / "dies_while_writing.py"),))
    torn.wait(timeout=200)
    journal = folder / "results/journal.jsonl"
    kept = [each.candidate_id for each in read_journal(journal).measurements]
    is_torn = not journal.read_bytes().endswith(b"\n")
    exit_code, output = run(path, "--resume")
    again = [each.candidate_id for each in read_journal(journal).measurements]
    return _differs(
        ("exit code of the killed", -signal.SIGKILL, torn.returncode),
        ("a torn line", True, is_torn),
        ("rows kept", 2, len(kept)),
        ("rows first", kept, again[:2]),
        ("rows in all", 4, len(set(again))),
        ("exit code", UNCONFIRMED, exit_code),
        output=output,
    )


def driver_killed(folder: Path) -> str:
    """Nothing of the sweep lives on, and the next one tidies up."""
    path = write_sweep(folder, space=FOUR, search=GRID, measure=SLOW)
    process = start(path)
    _at_work(process, folder)
    under_way = {child.pid for child in descendants(process.pid)}
    kill(process.pid)
    process.wait(timeout=20)
    _wait(lambda: not alive(under_way), 90)
    left = alive(under_way)
    exit_code, output = run(path, "--resume")
    return _differs(("processes", set(), left), ("exit code", UNCONFIRMED, exit_code), output=output)


def broker_killed(folder: Path) -> str:
    """The candidate under way runs once more, with a new broker."""
    return _survives(folder, lambda sweep: kill(actor_pids("Broker", under=sweep.pid)[0]))


def controller_killed(folder: Path) -> str:
    """Ray Train's controller dies, and its workers with it."""
    return _survives(folder, lambda sweep: kill(actor_pids("TrainController", under=sweep.pid)[0]))


def rank_killed(folder: Path) -> str:
    """A rank dies by SIGKILL from outside."""
    return _survives(folder, lambda sweep: kill(int(worker_logs(folder, 1)[-1].stem.rpartition("-")[2])))


def reaper_killed(folder: Path) -> str:
    """The reaper is started again, and the sweep does not notice."""
    return _survives(folder, lambda sweep: kill(actor_pids("Reaper", under=sweep.pid)[0]), once_more=0)


def raylet_killed(folder: Path) -> str:
    """The node of the workers is lost; the candidate runs once more on another one."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        workers = {"count": 2, "resources_per_worker": {"CPU": 0.5}, "placement": "STRICT_PACK"}
        path = write_sweep(folder, space=FOUR, search=GRID, measure=SLOW, workers=workers)
        process = start(path, "--address", cluster.address)
        log = _at_work(process, folder)
        raylet = psutil.Process(int(log.stem.rpartition("-")[2])).parent()
        assert raylet is not None and "raylet" in raylet.name(), raylet
        raylet.kill()
        return _after_loss(process, folder, once_more=1)
    finally:
        del nodes
        cluster.shutdown()


def disk_full(folder: Path) -> str:
    """The results folder fills up; the sweep stops, says so, and every finished row is readable."""
    disk = folder / "results"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(disk)], check=True)
    try:
        process = start(write_sweep(folder, space=FOUR, search=GRID), "--overwrite")
        wait_for_line(disk / "journal.jsonl", '"kind":"measurement"', count=2)
        for number, size in enumerate((MIB, 256)):  # to the last byte
            with (disk / f"filler-{number}").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))
        exit_code = process.wait(timeout=200)
        rows = read_journal(disk / "journal.jsonl").measurements
        shown = subprocess.run(
            [_raysweep(), "show", str(disk)], capture_output=True, text=True, timeout=60, check=False
        )
        return _differs(
            ("exit code", 1, exit_code),
            ("says why", True, "No space left on device" in process.output()),
            ("traceback", False, "Traceback" in process.output()),
            ("two rows or more", True, len(rows) >= 2),
            ("rows shown", True, shown.stdout.count("COMPLETED") >= 2),
            output=process.output(),
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def interrupted_with_data_loaders(folder: Path) -> str:
    """Ctrl-C: within 20 s no process is alive, the data loaders' included; what was measured is kept."""
    model = {"kind": "factory", "factory": "loaders:make", "python_path": str(HERE)}
    data = {"kind": "synthetic"}
    process = start(write_sweep(folder, space=FOUR, search=GRID, measure=SLOW, model=model, data=data))
    _at_work(process, folder, candidates=2)
    under_way = {child.pid for child in descendants(process.pid)}
    loaders = {int(each.name) for each in folder.glob("loader-pids/*")} | _python_children(folder)
    began_s = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    exit_code = process.wait(timeout=60)
    return _differs(
        ("data loaders seen", True, bool(loaders)),
        ("alive", set(), alive(under_way | loaders)),
        ("within 20 s", True, time.monotonic() - began_s < 20),
        ("exit code", 130, exit_code),
        ("rows kept", ["COMPLETED"], [row["status"] for row in measurements(folder)]),
        ("no raylet noise", False, "(raylet)" in process.output()),
        ("last line", True, process.output().strip().endswith("interrupted")),
        ("best so far", True, (folder / "results/best/UNCONFIRMED").exists()),
        output=process.output(),
    )


def told_to_end(folder: Path) -> str:
    """SIGTERM, as a cluster's scheduler sends it."""
    process = start(write_sweep(folder, space=FOUR, search=GRID, measure=SLOW))
    _at_work(process, folder)
    under_way = {child.pid for child in descendants(process.pid)}
    kill(process.pid, signal.SIGTERM)
    exit_code = process.wait(timeout=60)
    return _differs(("exit code", 130, exit_code), ("alive", set(), alive(under_way)), output=process.output())


def every_candidate_fails(folder: Path, **changes: Any) -> str:
    """Exit code 3, no best file, and the causes with counts."""
    model = _faulty(kind="value_error", phase="forward", step=2, rank=-1)
    path = write_sweep(folder, space=FOUR, search=GRID, model=model, data={"kind": "synthetic"}, **changes)
    old = folder / "results/best"
    old.mkdir(parents=True)
    (old / "ds_config.json").write_text("{}")
    exit_code, output = run(path, "--overwrite")
    return _differs(
        ("exit code", 3, exit_code),
        ("best files", [], list(old.glob("*"))),
        ("cause", True, "4 x FAILED (user_code)" in output and "the label is out of range" in output),
        ("traceback", False, "Traceback" in output),
        output=output,
    )


def no_group_can_start(folder: Path) -> str:
    """The sweep stops with the reason instead of looping."""
    broken = folder / "broken/deepspeed"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    environment = {"OMP_NUM_THREADS": 1, "PYTHONPATH": str(broken.parent)}
    path = write_sweep(folder, space=FOUR, search=GRID, environment=environment)
    exit_code, output = run(path, timeout_s=300)
    return _differs(
        ("exit code", 3, exit_code),
        ("says why", True, bool(re.search(r"no worker group can start: rank [01]: ImportError: libcudart", output))),
        ("traceback", False, "Traceback" in output),
        output=output,
    )


def stale_build_lock(folder: Path) -> str:
    """A killed build's lock is found, named and removed before the sweep."""
    lock = build_folder() / "left_by_a_killed_build" / "lock"
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    one = {**FOUR, "zero_stage": [1], "micro_batch_size_per_gpu": [2]}
    exit_code, output = run(write_sweep(folder, space=one, search=GRID))
    lock.parent.rmdir()
    return _differs(("exit code", UNCONFIRMED, exit_code), ("named", True, str(lock) in output), output=output)


def memory_monitor(folder: Path) -> str:
    """Ray's memory monitor ends a worker that grows: out of the host's memory, not a crash."""
    threshold = (used_bytes() + 3 * GIB) / psutil.virtual_memory().total
    one = {**FOUR, "zero_stage": [1], "micro_batch_size_per_gpu": [2]}
    path = write_sweep(
        folder, space=one, search=GRID, model=_faulty(kind="fill_memory", step=2), data={"kind": "synthetic"}
    )
    process = start(
        path, environment={"RAY_memory_usage_threshold": f"{threshold:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    )
    exit_code = process.wait(timeout=280)
    (row,) = trials(folder)
    return _differs(
        ("exit code", 3, exit_code),
        ("outcome", ("OOM", "host"), (row["status"], row["memory_kind"])),
        output=process.output(),
    )


def _survives(folder: Path, harm: Callable[[Run], None], *, once_more: int = 1) -> str:
    """Harm a sweep while its first candidate is at work."""
    process = start(write_sweep(folder, space=FOUR, search=GRID, measure=SLOW))
    _at_work(process, folder)
    harm(process)
    return _after_loss(process, folder, once_more=once_more)


def _after_loss(process: Run, folder: Path, *, once_more: int) -> str:
    """What differs from four completed candidates of which one was launched twice."""
    exit_code = process.wait(timeout=280)
    rows = measurements(folder)
    lost = [row["failure_kind"] for row in rows if row["failure_kind"]]
    return _differs(
        ("exit code", UNCONFIRMED, exit_code),
        ("lost launches", ["infrastructure"] * once_more, lost),
        ("outcomes", ["COMPLETED"] * 4, [row["status"] for row in trials(folder)]),
        ("alive", set(), alive({pid for row in rows for pid in row["worker_pids"]})),
        ("traceback", False, "Traceback" in process.output()),
        output=process.output(),
    )


def _at_work(process: Run, folder: Path, *, candidates: int = 1) -> Path:
    """Wait until a rank has begun so many candidates; its log."""
    _wait(lambda: bool(worker_logs(folder, 0)) or process.poll() is not None, 300)
    assert worker_logs(folder, 0), process.output()
    log = worker_logs(folder, 0)[-1]
    wait_for_line(log, "candidate ", count=candidates)
    time.sleep(1.0)
    return log


def _wait(is_so: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.2)


def _faulty(**kwargs: Any) -> dict[str, Any]:
    return {"kind": "factory", "factory": "faulty:make", "python_path": str(HERE), "kwargs": kwargs}


def _python_children(folder: Path) -> set[int]:
    """Processes that the ranks have started."""
    ranks = [int(log.stem.rpartition("-")[2]) for rank in (0, 1) for log in worker_logs(folder, rank)]
    return {child.pid for pid in ranks for child in descendants(pid)}


def _raysweep() -> str:
    return str(Path(os.sys.executable).parent / "raysweep")


def _differs(*checks: tuple[str, object, object], output: str) -> str:
    wrong = [f"{what}: {found!r} in place of {right!r}" for what, right, found in checks if found != right]
    return "; ".join([*wrong, output[-6000:]] if wrong else [])


SWEEP_FAULTS: tuple[SweepFault, ...] = (
    driver_killed_in_the_middle_of_a_write,
    driver_killed,
    broker_killed,
    controller_killed,
    rank_killed,
    reaper_killed,
    raylet_killed,
    disk_full,
    interrupted_with_data_loaders,
    told_to_end,
    every_candidate_fails,
    no_group_can_start,
    stale_build_lock,
    memory_monitor,
)
