"""Runs a sweep from its file to its best config: plan, search, confirm, select, export."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ray.tune import Callback

from raysweep.errors import GroupCannotStart, NothingSucceeded
from raysweep.launch.cluster import describe_placement
from raysweep.launch.devices import device_kind
from raysweep.launch.launcher import Launcher
from raysweep.plan import SweepPlan
from raysweep.results.confirm import demoted
from raysweep.results.export import remove_best, write_best, write_selection
from raysweep.results.finalists import finalists, ineligible_because
from raysweep.results.paths import ResultsPaths, local_folder
from raysweep.results.records import TrialRecord
from raysweep.results.report import failures_by_cause
from raysweep.results.select import Selection, choose_winner
from raysweep.results.store import records_from
from raysweep.search.best import best_of
from raysweep.search.confirm import confirm
from raysweep.search.earlier_trials import EarlierTrials, earlier_trials
from raysweep.search.heartbeat import Heartbeat
from raysweep.search.observer import Observer
from raysweep.search.opened_launcher import opened_launcher
from raysweep.search.pruning import Pruning, audit, audit_sample
from raysweep.search.ready import device_memory, precision_lacks, ready_cluster
from raysweep.search.recorder import Recorder, check_folder, check_same_sweep
from raysweep.search.requests import RequestMaker
from raysweep.search.searcher import CandidateSearcher
from raysweep.search.searchers import calibration_notes, make_searcher
from raysweep.search.sweep_result import SweepResult
from raysweep.search.trackers import make_trackers
from raysweep.search.tuner import LauncherFactory, run_trials
from raysweep.sweep_file import Sweep
from raysweep.trial import LaunchRequest, Measurement, Phase
from raysweep.units import format_seconds


def run_sweep(
    sweep: Sweep,
    *,
    observer: Observer,
    address: str | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    overwrite: bool = False,
    check: bool = True,
    pruning: Pruning = Pruning(),  # noqa: B008 (frozen)
) -> SweepResult:
    """Search, confirm and export; everything measured is on disk as soon as it is known.

    Args:
        sweep: the sweep file, read.
        observer: told of progress.
        address: an existing Ray cluster; by default the file's, else a local Ray is started.
        resume: go on with the records of an earlier run of the same sweep.
        retry_failed: and launch again what failed in it.
        overwrite: remove what an earlier run left.
        check: look the nodes over first.
        pruning: how memory is predicted, and what becomes of candidates that cannot fit.

    Raises:
        ConfigError: when the input cannot be right; nothing has been written then.
        PreflightError: when something that the sweep needs is not there.
        NothingSucceeded: when no candidate completed; GroupCannotStart when no worker group came up.
    """
    began_s = time.monotonic()
    check_folder(sweep.results, resume=resume, overwrite=overwrite)
    trackers = make_trackers(sweep, folder=ResultsPaths(local_folder(sweep.results)).trackers, note=observer.note)
    cluster = ready_cluster(sweep, address=address, check=check, prunes=not pruning.force, note=observer.note)
    with ExitStack() as stack:
        ready = stack.enter_context(cluster)
        if ready.report is not None:
            ready.report.refuse()
            for finding in ready.report.findings:
                observer.note(finding.line())
        sweep, plan = pruning.plan(
            sweep,
            device_memory_bytes=device_memory(sweep),
            unsupported_precision=precision_lacks(sweep),
            note=observer.note,
        )
        if resume:
            check_same_sweep(sweep, plan)
        recorder = Recorder(sweep, plan, resume=resume)
        stack.callback(recorder.close)
        run = _Run(
            sweep=sweep,
            plan=plan,
            recorder=recorder,
            observer=observer,
            slots=ready.slots,
            places=ready.places,
            trackers=trackers,
            earlier=earlier_trials(sweep.workload.model, device=device_kind(sweep.workload.device)),
            pruning=pruning,
        )
        return run.to_the_end(began_s, recorder.kept(retry_failed=retry_failed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A sweep under way."""

    sweep: Sweep
    plan: SweepPlan
    recorder: Recorder
    observer: Observer
    slots: Mapping[str, int]
    """Address of each node -> workers that it can hold."""
    places: Sequence[Sequence[str]]
    """Nodes of each worker group."""
    trackers: Sequence[Callback] = ()
    earlier: EarlierTrials
    pruning: Pruning

    def to_the_end(self, began_s: float, kept: Mapping[str, Measurement]) -> SweepResult:
        requests = RequestMaker(sweep=self.sweep, memory_budget_bytes=self.plan.memory_budget_bytes)
        earlier = self.earlier if self.pruning.calibrates else None
        searcher = make_searcher(self.sweep, self.plan, kept, earlier)
        for line in calibration_notes(self.sweep, self.plan, earlier):
            self.observer.note(line)
        self.observer.planned(self.plan, searcher.most_launches)
        if not self.plan.rows.admitted_count:
            reason = next(row.reason for row in self.plan.rows if row.reason)
            self._conclude(reason)
            raise NothingSucceeded(message=f"no candidate can be launched: {reason}")
        try:
            logs = str(Path(self.recorder.paths.logs).absolute())
            with opened_launcher(self.sweep, log_folder=logs, places=self.places, note=self.observer.note) as (
                launcher,
                make_launchers,
            ):
                try:
                    self._search(requests.make_all(searcher.left), searcher, launcher, make_launchers)
                    self._audit(requests, launcher)
                    if self.sweep.file.search.confirm:
                        self._confirm(requests, launcher)
                finally:
                    self._note_group_ends(launcher)
            self._note_group_ends(launcher)
        except (KeyboardInterrupt, GroupCannotStart) as error:
            self._conclude(f"the sweep was stopped: {type(error).__name__}")
            raise
        return self._result(self._conclude(searcher.stopped, searcher.bounded()), searcher.stopped, began_s)

    def _search(
        self,
        requests: Mapping[str, LaunchRequest],
        searcher: CandidateSearcher,
        launcher: Launcher,
        make_launchers: Sequence[LauncherFactory],
    ) -> None:
        if not searcher.most_launches:
            searcher.stop("every candidate had been measured before")
            return
        limit_s = self.sweep.file.cluster.group_start_timeout_seconds
        self.observer.note(
            f"searching by {self.sweep.file.search.method}: {searcher.most_launches} candidates; first "
            f"{self.sweep.file.workers.busy} workers start, and on a new machine build an operator "
            f"(minutes; given up after {format_seconds(limit_s)})"
        )

        def on_measured(measurements: list[Measurement]) -> None:
            self._record(measurements, launcher)
            self._note_group_ends(launcher)

        run_trials(
            requests,
            searcher=searcher,
            make_launchers=make_launchers,
            on_launching=lambda candidate_id: self.observer.launching(candidate_id, Phase.SEARCH, 0),
            on_measured=on_measured,
            on_waiting=Heartbeat(launcher, self.observer).beat,
            trackers=self.trackers,
        )

    def _audit(self, requests: RequestMaker, launcher: Launcher) -> None:
        """Launch a sample of the pruned, where that was asked for."""
        chosen = audit_sample(self.plan, share=self.pruning.audit_share, seed=self.sweep.file.search.seed)
        if chosen:
            self.observer.note(
                audit(
                    launcher,
                    chosen,
                    requests,
                    self.observer,
                    on_measured=lambda measurements: self._record(measurements, launcher),
                )
            )

    def _confirm(self, requests: RequestMaker, launcher: Launcher) -> None:
        """Confirm the finalists; where all of them fail, those behind them."""
        candidates = {row.candidate.candidate_id: row.candidate for row in self.plan.rows}
        while True:
            contents = self.recorder.contents()
            records = records_from(contents)
            chosen = finalists(
                records,
                allow_loss_difference=self.sweep.file.allow_loss_difference,
                excluded=demoted(contents.measurements),
                objective=self.sweep.file.objective.noun(),
            )
            if not chosen or any(self._may_win(record) for record in records if record.confirmed):
                return
            self.observer.note(f"confirming {', '.join(chosen)} in three fresh groups")
            confirm(
                launcher,
                [requests.make(candidates[each]) for each in chosen],
                on_launching=lambda each, number: self.observer.launching(each, Phase.CONFIRM, number),
                on_measured=lambda measurements: self._record(measurements, launcher),
            )

    def _may_win(self, record: TrialRecord) -> bool:
        file = self.sweep.file
        return not ineligible_because(
            record, allow_loss_difference=file.allow_loss_difference, objective=file.objective.noun()
        )

    def _record(self, measurements: list[Measurement], launcher: Launcher) -> None:
        self.recorder.measured(measurements)
        for measurement in measurements:
            self.observer.measured(measurement)
            if len(self.slots) > 1 and measurement.position_in_group == 1:
                # Of the nodes of other groups no slot is idle.
                own = next((place for place in self.places if set(measurement.nodes) & set(place)), self.slots)
                self.observer.note(describe_placement(measurement.nodes, {node: self.slots[node] for node in own}))
            for copy in launcher.bring_logs(measurement, Path(self.recorder.paths.logs)):
                self.observer.note(f"the log of a failed rank is here now: {copy}")

    def _note_group_ends(self, launcher: Launcher) -> None:
        self.recorder.groups_ended(launcher.group_ends())

    def _conclude(self, stop_reason: str, bounded: Mapping[str, str] | None = None) -> Selection:
        """Write the Parquet files, the selection and the best files; an old best never stays as if it were new."""
        self.recorder.finished(stop_reason, bounded)
        contents = self.recorder.contents()
        records = records_from(contents)
        selection = choose_winner(
            records,
            measurements=contents.measurements,
            allow_loss_difference=self.sweep.file.allow_loss_difference,
            objective=self.sweep.file.objective.noun(),
        )
        self.earlier.keep(records, self.plan.estimates, sweep_sha256=self.sweep.sweep_sha256)
        root = self.recorder.paths.root
        write_selection(root, selection)
        if selection.winner is None:
            remove_best(root)
        else:
            write_best(root, best_of(contents, records, selection))
        self.recorder.publish()
        return selection

    def _result(self, selection: Selection, stop_reason: str, began_s: float) -> SweepResult:
        contents = self.recorder.contents()
        records = records_from(contents)
        if selection.winner is None:
            causes = "".join(
                f"\n{each.count:4d} x {each.cause}, e.g. {each.example}" for each in failures_by_cause(records)
            )
            raise NothingSucceeded(message=f"{selection.none_because}{causes}")
        return SweepResult(
            selection=selection,
            records=records,
            folder=self.recorder.paths.root,
            launches=len(contents.measurements),
            group_starts=len(contents.group_ends),
            wall_s=time.monotonic() - began_s,
            stop_reason=stop_reason,
        )
