"""Tells experiment trackers of each candidate of the search, by Ray Tune's own callbacks for them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.logger import LoggerCallback, TBXLoggerCallback

from raysweep.errors import PreflightError
from raysweep.serde import from_dict
from raysweep.sweep_file import Sweep
from raysweep.tracker_schema import MlflowSection, TensorboardSection, WandbSection
from raysweep.trial import LaunchRequest, Measurement, TrialStatus

NEEDS = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
"""Tracker -> the module that its callback needs."""


def make_trackers(sweep: Sweep, *, folder: Path, note: Callable[[str], None]) -> list[tune.Callback]:
    """A callback for each tracker that the sweep file names.

    Args:
        sweep: the sweep file, read.
        folder: for what trackers write to disk.
        note: told when a tracker fails; the sweep goes on without it.

    Raises:
        PreflightError: when a tracker's package is not installed.
    """
    named = {name: section for name in NEEDS if (section := getattr(sweep.file.trackers, name)) is not None}
    for name in named:
        if find_spec(NEEDS[name]) is None:
            rule = f"trackers.{name} needs the package {NEEDS[name]}: pip install 'raysweep[{name}]'"
            raise PreflightError(message=rule)
    return [
        _Tracker(
            name,
            _logger(section, sweep),
            folder=Path(folder, name).absolute(),
            sweep_name=sweep.file.name,
            note=note,
        )
        for name, section in named.items()
    ]


def _logger(section: Any, sweep: Sweep) -> LoggerCallback:
    if isinstance(section, TensorboardSection):
        return TBXLoggerCallback()
    if isinstance(section, MlflowSection):
        # Packages of their own, which the driver otherwise does without.
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        return MLflowLoggerCallback(
            tracking_uri=section.tracking_uri, experiment_name=section.experiment or sweep.file.name
        )
    assert isinstance(section, WandbSection), section
    from ray.air.integrations.wandb import WandbLoggerCallback

    # Ray's callback wants a key also where nothing is sent.
    key = "offline" if section.mode == "offline" and not os.environ.get("WANDB_API_KEY") else None
    return WandbLoggerCallback(
        project=section.project or sweep.file.name, group=sweep.file.name, mode=section.mode, api_key=key
    )


@dataclass(frozen=True, slots=True, eq=False)
class TrackedTrial:
    """As much of a Ray Tune trial as the callbacks of trackers ask for; it is called after its candidate."""

    trial_id: str
    config: Mapping[str, Any]
    """The candidate and what a reader tells sweeps apart by; Tune's own has the whole request as text."""
    local_path: str
    experiment_dir_name: str
    evaluated_params: Mapping[str, Any] = field(default_factory=dict)

    def init_local_path(self) -> None:
        """Make the folder of the trial."""
        Path(self.local_path).mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        return str(self.config["candidate_id"])


class _Tracker(tune.Callback):  # type: ignore[misc]
    """Hands a trial to a tracker's callback once it is over, so that no tracker is at work while one is measured."""

    def __init__(
        self, name: str, logger: LoggerCallback, *, folder: Path, sweep_name: str, note: Callable[[str], None]
    ) -> None:
        self._name = name
        self._logger = logger
        self._folder = folder
        self._sweep_name = sweep_name
        self._note = note
        self._works = True

    def __getstate__(self) -> dict[str, Any]:
        """Ray Tune pickles its callbacks to restore an experiment; a sweep resumes by its own records."""
        return {}

    def setup(self, **info: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._tell(lambda: self._logger.setup(**info))

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Mapping[str, Any], **info: Any) -> None:
        if result.get("measurements"):
            measurements = [from_dict(Measurement, plain) for plain in result["measurements"]]
            told = self._trial(trial)
            failed = measurements[-1].status is not TrialStatus.COMPLETED
            self._tell(lambda: self._log(told, metrics_of(measurements), failed=failed))

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self._tell(lambda: self._logger.on_experiment_end(trials=trials, **info))

    def _trial(self, trial: Any) -> TrackedTrial:
        request = from_dict(LaunchRequest, json.loads(trial.config["request"]))
        config = parameters_of(request)
        return TrackedTrial(
            trial_id=trial.trial_id,
            config=config,
            local_path=str(self._folder / request.candidate.candidate_id),
            experiment_dir_name=self._sweep_name,
            evaluated_params=config,
        )

    def _log(self, trial: TrackedTrial, metrics: Mapping[str, float], *, failed: bool) -> None:
        trial.init_local_path()
        self._logger.log_trial_start(trial)
        self._logger.log_trial_result(1, trial, dict(metrics))
        self._logger.log_trial_end(trial, failed=failed)

    def _tell(self, call: Callable[[], Any]) -> None:
        """A tracker is another's code, and often another's machine: where it fails, the measurements go on."""
        if not self._works:
            return
        try:
            call()
        except Exception as error:
            self._works = False
            logging.getLogger(__name__).warning("tracker %s failed", self._name, exc_info=error)
            self._note(f"trackers.{self._name} failed and is left out from here on: {' '.join(str(error).split())}")


def parameters_of(request: LaunchRequest) -> dict[str, Any]:
    """What a tracker shows as the parameters of a candidate."""
    candidate = request.candidate
    return {
        "candidate_id": candidate.candidate_id,
        "zero_stage": candidate.zero_stage,
        "activation_checkpoint_interval": candidate.activation_checkpoint_interval,
        "micro_batch_size_per_gpu": candidate.micro_batch_size_per_gpu,
        "gradient_accumulation_steps": candidate.gradient_accumulation_steps,
        **candidate.further_axes,
        "world_size": request.workload.world_size,
        "precision": request.workload.precision,
    }


def metrics_of(measurements: Sequence[Measurement]) -> dict[str, float]:
    """The numbers of a candidate's last launch; rate 0 where it has no figures."""
    last = measurements[-1]
    figures = last.figures
    metrics: dict[str, float] = {
        "training_iteration": 1,
        "completed": float(last.status is TrialStatus.COMPLETED),
        "launches": len(measurements),
        "samples_per_s": figures.samples_per_s if figures else 0.0,
        "wall_s": last.wall_s,
    }
    if last.peak_memory_bytes is not None:
        metrics["peak_memory_bytes"] = last.peak_memory_bytes
    if figures:
        metrics |= {
            "tokens_per_s": figures.tokens_per_s,
            "step_time_s": figures.step_time_s_median,
            "first_loss": figures.first_loss,
            "recomputed_blocks": figures.recomputed_blocks,
        }
    return metrics
