"""Writes what happens in a sweep to its results folder as it happens, and takes stock of it at the end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from raysweep import __version__
from raysweep.clock import utc_now
from raysweep.errors import ConfigError
from raysweep.plan import SweepPlan
from raysweep.results.journal import Journal, JournalContents, read_journal
from raysweep.results.lock import SweepLock
from raysweep.results.paths import ResultsPaths, local_folder
from raysweep.results.store import Compactor, copy_folder
from raysweep.serde import to_dict
from raysweep.sweep_file import Sweep
from raysweep.trial import FailureKind, GroupEnd, Measurement, Phase, SweepStart, TrialStatus

RECORDED_PACKAGES = ("ray", "torch", "deepspeed", "pyarrow")


def check_folder(results: str, *, resume: bool, overwrite: bool) -> None:
    """Refuse to mix two sweeps in one folder.

    Raises:
        ConfigError: when a sweep is writing there, when the folder holds a sweep and neither `resume` nor `overwrite`
            was asked, or when there is nothing to resume.
    """
    paths = ResultsPaths(local_folder(results))
    journal = paths.journal
    if paths.lock.exists():
        SweepLock.acquire(paths.lock).release()
    if journal.exists() and not (resume or overwrite):
        raise ConfigError(
            key="results",
            value=results,
            rule="holds a sweep already; go on with --resume, or start again with --overwrite",
        )
    if resume and not journal.exists():
        raise ConfigError(key="results", value=results, rule="holds no sweep to resume")


class Recorder:
    """Holds a results folder for the length of a sweep."""

    def __init__(self, sweep: Sweep, plan: SweepPlan, *, resume: bool) -> None:
        self.paths = ResultsPaths(local_folder(sweep.results))
        self._results = sweep.results
        Path(self.paths.root).mkdir(parents=True, exist_ok=True)
        start = sweep_start(sweep, plan)
        self._lock = SweepLock.acquire(self.paths.lock)
        if not resume:
            self._clear()
        self._journal = Journal.open(self.paths.journal)
        self._journal.append("sweep", to_dict(start))
        self._ended = {end.group_id for end in self.contents().group_ends}
        self.paths.sweep_file.write_text(sweep.text)
        self._compactor = Compactor(self.paths.journal, uri=sweep.results)

    def contents(self) -> JournalContents:
        """All that was recorded so far."""
        return read_journal(self.paths.journal)

    def kept(self, *, retry_failed: bool = False) -> dict[str, Measurement]:
        """Candidate id -> its launch that a resumed sweep need not repeat.

        All but infrastructure failures; with `retry_failed` no failure. Out of memory is an outcome, and stays.
        """
        standing = {m.candidate_id: m for m in self.contents().measurements if m.phase in (Phase.SEARCH, Phase.RETRY)}
        return {
            candidate_id: measurement
            for candidate_id, measurement in standing.items()
            if measurement.failure_kind is not FailureKind.INFRASTRUCTURE
            and measurement.status is not TrialStatus.TIMED_OUT
            and not (retry_failed and measurement.status is TrialStatus.FAILED)
        }

    def measured(self, measurements: Iterable[Measurement]) -> None:
        """Keep the launches of one candidate; they are on disk when this returns."""
        for measurement in measurements:
            self._journal.append("measurement", to_dict(measurement))
        self._lock.beat()
        self._compactor.tick()

    def groups_ended(self, ends: Iterable[GroupEnd]) -> None:
        """Keep the ends of worker groups that are not kept yet."""
        for end in ends:
            if end.group_id not in self._ended:
                self._ended.add(end.group_id)
                self._journal.append("group_end", to_dict(end))

    def finished(self, reason: str, bounded: Mapping[str, str] | None = None) -> None:
        """Note why the search ended and what a bound ruled out (candidate id -> reason); write both Parquet files."""
        self._journal.append("finished", {"reason": reason, "bounded": dict(bounded or {})})
        self._compactor.finish()

    def publish(self) -> None:
        """Copy everything to the results URI, where the file names one."""
        if "://" in self._results:
            copy_folder(self.paths.root, uri=self._results)

    def close(self) -> None:
        """Let the folder go."""
        self._journal.close()
        self._lock.release()

    def _clear(self) -> None:
        """Remove what an earlier sweep left: an old best file must not look like a new one."""
        paths = self.paths
        for folder in (paths.best, paths.logs, paths.trackers):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (paths.journal, paths.selection, paths.trials, paths.measurements):
            file.unlink(missing_ok=True)


def sweep_start(sweep: Sweep, plan: SweepPlan) -> SweepStart:
    """What all rows of this sweep share."""
    return SweepStart(
        sweep_sha256=sweep.sweep_sha256,
        workload=sweep.workload,
        base_ds_config=sweep.base_ds_config,
        resources_per_worker=sweep.file.workers.resources_per_worker,
        memory_budget_bytes=plan.memory_budget_bytes,
        allow_loss_difference=sweep.file.allow_loss_difference,
        objective=sweep.file.objective.noun(),
        versions=installed_versions(),
        started_at=utc_now(),
        plan_rows=tuple(plan.rows),
    )


def installed_versions() -> dict[str, str]:
    """Package -> version of what decides a measurement, without importing any of it."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "raysweep": __version__}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def check_same_sweep(sweep: Sweep, plan: SweepPlan) -> None:
    """Refuse to resume where measurements would not compare: another workload, budget, or version.

    Raises:
        ConfigError: naming what differs.
    """
    before = read_journal(ResultsPaths(local_folder(sweep.results)).journal).sweep
    start = sweep_start(sweep, plan)
    changed = [
        f"{package} {before.versions.get(package)} -> {now}"
        for package, now in start.versions.items()
        if before.versions.get(package) != now
    ]
    if before.workload.described() != start.workload.described():
        changed.append("the workload (model, data, precision, optimizer, workers, batch or environment)")
    if before.memory_budget_bytes != start.memory_budget_bytes:
        changed.append("the memory budget")
    if changed:
        raise ConfigError(
            key="results",
            value=sweep.results,
            rule=f"cannot be resumed, these changed: {'; '.join(changed)}; use --overwrite",
        )
