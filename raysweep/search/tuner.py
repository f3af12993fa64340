"""Runs candidates as Ray Tune trials. A trial is a call to the launcher; it holds no CPU of the cluster."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from raysweep.errors import GroupCannotStart, PreflightError, RaysweepError
from raysweep.launch.attempts import run_candidate
from raysweep.launch.launcher import Launcher
from raysweep.launch.node_folder import NodeFolder
from raysweep.search.searcher import CandidateSearcher
from raysweep.serde import from_dict, to_dict
from raysweep.trial import LaunchRequest, Measurement

TRIAL_RESOURCES = {"node:__internal_head__": 0.001}
"""No CPU: trials run while the workers hold every one, and stay on the head, away from the devices."""

LauncherFactory = Callable[[], Launcher]


def run_trials(
    requests: Mapping[str, LaunchRequest],
    *,
    searcher: CandidateSearcher,
    make_launchers: Sequence[LauncherFactory],
    on_launching: Callable[[str], None],
    on_measured: Callable[[list[Measurement]], None],
    on_waiting: Callable[[], None] = lambda: None,
    trackers: Sequence[tune.Callback] = (),
) -> None:
    """Launch the candidates that the searcher proposes, one at a time on each worker group.

    Args:
        requests: candidate_id -> what to launch.
        searcher: proposes candidate ids.
        make_launchers: one for each worker group; called in the trial's own process; must pickle.
        on_launching: called in this process with each candidate's id, before it is launched.
        on_measured: called in this process with the launches of each candidate, as soon as it is over; an error of
            ours that it raises ends the search.
        on_waiting: called in this process again and again while a candidate is under way.
        trackers: further callbacks of Ray Tune's.

    Raises:
        GroupCannotStart: when no worker group came up.
        RaysweepError: what `on_measured` raised, e.g. that nothing can be recorded any more.
        PreflightError: when Ray Tune itself failed.
    """
    _set_tune_variables()
    listener = _Listener(on_launching, on_measured, on_waiting, searcher)
    trainable = tune.with_resources(tune.with_parameters(_run_trial, make_launchers=make_launchers), TRIAL_RESOURCES)
    with NodeFolder(f"tune-{uuid.uuid4().hex[:8]}").held() as storage:
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                metric="samples_per_s",
                mode="max",
                search_alg=OneGroupEach(searcher, requests, groups=len(make_launchers)),
                num_samples=len(requests),
                max_concurrent_trials=len(make_launchers),
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=storage,
                verbose=0,
                callbacks=[listener, *trackers],
                # A trial's process that is lost, e.g. to the node's memory monitor, hands its candidate in again.
                failure_config=tune.FailureConfig(max_failures=2),
            ),
        )
        results = tuner.fit()
    searcher.look_for_end()  # Ray Tune does not ask again after the last trial, so the reason is not known yet
    if listener.error:
        raise listener.error
    if results.errors:
        raise PreflightError(message=f"a Ray Tune trial failed outside its candidate: {results.errors[0]}")


def _run_trial(config: Mapping[str, Any], *, make_launchers: Sequence[LauncherFactory]) -> None:
    """One trial, in a process of Ray Tune's. Every report has the metric: without it Tune ends the experiment."""
    request = from_dict(LaunchRequest, json.loads(config["request"]))
    measurements: list[Measurement] = []
    try:
        run_candidate(make_launchers[config["group"]](), request, on_launch=measurements.append)
    except GroupCannotStart as error:
        lost = [to_dict(measurement) for measurement in measurements]
        tune.report({"samples_per_s": 0.0, "cannot_start": error.data["reason"], "measurements": lost})
        return
    figures = measurements[-1].figures
    tune.report(
        {
            "samples_per_s": figures.samples_per_s if figures else 0.0,
            "measurements": [to_dict(measurement) for measurement in measurements],
        }
    )


class OneGroupEach(Searcher):  # type: ignore[misc]
    """Hands each trial its own request with the candidate that the searcher proposes, and the worker group to use.

    As one text: Tune looks through what is nested. Were all requests given to every trial, each would unpack them all.
    """

    def __init__(self, searcher: CandidateSearcher, requests: Mapping[str, LaunchRequest], *, groups: int) -> None:
        super().__init__(metric=searcher.metric, mode=searcher.mode)
        self._searcher = searcher
        self._requests = requests
        self._free = list(range(groups))
        self._group_of: dict[str, int] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Ray Tune's hook."""
        suggestion = self._searcher.suggest(trial_id)
        if not isinstance(suggestion, dict):
            return suggestion
        request = self._searcher.in_race(self._requests[suggestion["candidate_id"]])
        # Tune asks for no more trials at a time than there are groups.
        self._group_of[trial_id] = self._free.pop(0)
        return suggestion | {"request": json.dumps(to_dict(request)), "group": self._group_of[trial_id]}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ray Tune's hook."""
        if trial_id in self._group_of:
            self._free.append(self._group_of.pop(trial_id))
        self._searcher.on_trial_complete(trial_id, result, error)

    def save(self, checkpoint_path: str) -> None:
        """Ray Tune's hook."""
        self._searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Ray Tune's hook."""
        self._searcher.restore(checkpoint_path)


class _Listener(tune.Callback):  # type: ignore[misc]
    """Hands each trial's launches on, in the driver, the moment they are reported."""

    def __init__(
        self,
        on_launching: Callable[[str], None],
        on_measured: Callable[[list[Measurement]], None],
        on_waiting: Callable[[], None],
        searcher: CandidateSearcher,
    ) -> None:
        self._on_launching = on_launching
        self._on_measured = on_measured
        self._on_waiting = on_waiting
        self._searcher = searcher
        self.error: RaysweepError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Ray Tune pickles its callbacks to restore an experiment; a sweep resumes by its own records."""
        return {}

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._on_launching(trial.config["candidate_id"])

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        self._on_waiting()

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Mapping[str, Any], **info: Any) -> None:
        try:
            if result.get("measurements"):
                self._on_measured([from_dict(Measurement, plain) for plain in result["measurements"]])
            if result.get("cannot_start"):
                raise GroupCannotStart(reason=result["cannot_start"])
        except RaysweepError as error:  # raised here it would reach the user as a traceback of Ray Tune's
            self._end(error)

    def _end(self, error: RaysweepError) -> None:
        self.error = error
        self._searcher.stop(str(error))


def _set_tune_variables() -> None:
    """Set what Ray Tune reads from the environment: no loggers of its own, Ctrl-C left to us."""
    os.environ.update(
        TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",
        TUNE_DISABLE_SIGINT_HANDLER="1",
        RAY_AIR_NEW_OUTPUT="0",
        TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S="0",
    )
    assert ray.is_initialized(), "the sweep has joined Ray before"
