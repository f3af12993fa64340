"""Experiment trackers are told of a candidate once it is over, in numbers, and cannot end a sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_candidate, make_request, write_sweep
from results_builders import completed, failed

from raysweep.errors import PreflightError
from raysweep.search import trackers as module
from raysweep.search.trackers import make_trackers, metrics_of, parameters_of
from raysweep.serde import to_dict
from raysweep.sweep_file import load_sweep
from raysweep.trial import TrialStatus

CANDIDATE = make_candidate()


def _trackers(folder: Path, notes: list[str], **sections: Any) -> list[Any]:
    sweep = load_sweep(write_sweep(folder, trackers=sections))
    return make_trackers(sweep, folder=folder / "trackers", note=notes.append)


def _tell(tracker: Any, *measurements: Any) -> None:
    """A whole experiment of one trial, as Ray Tune tells it."""
    request = json.dumps(to_dict(replace(make_request(), candidate=CANDIDATE)))
    trial = SimpleNamespace(trial_id="t1", config={"candidate_id": CANDIDATE.candidate_id, "request": request})
    tracker.setup()
    tracker.on_trial_result(1, [trial], trial, {"measurements": [to_dict(each) for each in measurements]})
    tracker.on_experiment_end([trial])


def test_the_metrics_are_numbers_and_the_parameters_are_the_candidate() -> None:
    found = metrics_of([completed(CANDIDATE.candidate_id, 80.0)])
    assert (found["samples_per_s"], found["step_time_s"], found["completed"]) == (80.0, 0.2, 1.0)
    assert all(isinstance(value, int | float) for value in found.values())
    gone = metrics_of([failed(CANDIDATE.candidate_id, TrialStatus.OOM, peak_memory_bytes=7)])
    assert (gone["samples_per_s"], gone["completed"], gone["peak_memory_bytes"]) == (0.0, 0.0, 7)
    told = parameters_of(make_request(candidate=CANDIDATE))
    assert told["candidate_id"] == CANDIDATE.candidate_id and told["zero_stage"] == 2


def test_tensorboard_gets_a_run_a_candidate(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    notes: list[str] = []
    (tracker,) = _trackers(tmp_path, notes, tensorboard=True)
    _tell(tracker, completed(CANDIDATE.candidate_id, 80.0))
    (events,) = (tmp_path / "trackers/tensorboard" / CANDIDATE.candidate_id).glob("events.out.tfevents.*")
    assert b"samples_per_s" in events.read_bytes() and b"zero_stage" in events.read_bytes()
    assert notes == []


def test_mlflow_gets_a_run_a_candidate(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    notes: list[str] = []
    (tracker,) = _trackers(tmp_path, notes, mlflow={"tracking_uri": f"file:{tmp_path}/runs"})
    _tell(tracker, completed(CANDIDATE.candidate_id, 80.0))
    assert notes == []
    client = mlflow.tracking.MlflowClient(f"file:{tmp_path}/runs")
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.data.metrics["samples_per_s"] == 80.0 and run.data.params["zero_stage"] == "2"
    assert run.info.status == "FINISHED"


def test_a_tracker_that_fails_is_left_out_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def setup(self, **info: Any) -> None:
            raise ConnectionError("no route\nto host")

        def log_trial_start(self, trial: Any) -> None:
            raise AssertionError("it is left out by now")

    monkeypatch.setattr(module, "_logger", lambda section, sweep: Broken())
    notes: list[str] = []
    (tracker,) = _trackers(tmp_path, notes, tensorboard=True)
    _tell(tracker, completed(CANDIDATE.candidate_id, 80.0))
    assert notes == ["trackers.tensorboard failed and is left out from here on: no route to host"]


def test_a_tracker_that_is_not_installed_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "wandb" else util.find_spec(name))
    with pytest.raises(PreflightError, match=r"pip install 'raysweep\[wandb\]'"):
        _trackers(tmp_path, [], wandb={"mode": "offline"})


def test_who_is_told_does_not_change_the_sweep(tmp_path: Path) -> None:
    plain, tracked = (load_sweep(write_sweep(tmp_path, **given)) for given in ({}, {"trackers": {"tensorboard": True}}))
    assert plain.sweep_sha256 == tracked.sweep_sha256
    assert _trackers(tmp_path, []) == []
