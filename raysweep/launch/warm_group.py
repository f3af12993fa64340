"""The warm worker group: one Ray Train run that outlives its candidates and restarts when a rank dies."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchConfig, TorchTrainer

from raysweep.launch.broker import find_broker, start_broker
from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.reaper import start_reapers
from raysweep.launch.worker_loop import describe_failure, serve
from raysweep.serde import to_dict

logger = logging.getLogger(__name__)

LEAVE_WITHIN_S = 30.0
"""How long a group that was told to leave may take before its processes are killed."""
LEAVE_AT_ONCE_S = 3.0
"""The same, when the sweep was interrupted: the group is in the midst of a candidate and will not come to ask."""
HEALTH_CHECK_INTERVAL_S = 0.5
COLLECTIVE_TIMEOUT_S = 300
EXTENSIONS_FOLDER = "~/.cache/raysweep/torch_extensions"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What a worker group is made of."""

    sweep_id: str
    world_size: int
    resources_per_worker: dict[str, float]
    placement: str
    device: str
    log_folder: str
    start_timeout_s: float = 600.0
    extensions_folder: str = EXTENSIONS_FOLDER


class DeathReporter(UserCallback):  # type: ignore[misc]
    """Tells the broker which ranks died of what. Ray calls it in its controller process."""

    def __init__(self, sweep_id: str) -> None:
        self._sweep_id = sweep_id

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Ray's hook: rank -> exception."""
        errors = {
            rank: to_dict(describe_failure(getattr(error, "health_check_failure", error), rank=rank))
            for rank, error in worker_exceptions.items()
        }
        ray.get(find_broker(self._sweep_id).died.remote(errors), timeout=60)


class WarmGroup:
    """Context manager: on entry the group starts to come up, on exit every process of it is gone."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._storage = tempfile.TemporaryDirectory(prefix="raysweep-train-")

    def __enter__(self) -> BrokerClient:
        spec = self._spec
        set_train_variables(start_timeout_s=spec.start_timeout_s)
        self._broker = start_broker(spec.sweep_id, world_size=spec.world_size, start_timeout_s=spec.start_timeout_s)
        self._reapers = start_reapers(spec.sweep_id)
        # In a thread Ray installs no SIGINT handler, so that Ctrl-C stays with the command line.
        self._thread = threading.Thread(target=self._fit, name="raysweep-train", daemon=True)
        self._thread.start()
        self._client = BrokerClient(self._broker)
        return self._client

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        overview = ray.get(self._broker.overview.remote(), timeout=60)
        pids = [int(facts["pid"]) for facts in overview["ranks"]]
        self._client.close("sweep ended" if kind is None else f"sweep ended by {kind.__name__}")
        self._thread.join(timeout=LEAVE_WITHIN_S if kind is None else LEAVE_AT_ONCE_S)
        left = [pid for left in ray.get([r.kill.remote(pids) for r in self._reapers], timeout=60) for pid in left]
        if left:
            logger.error("processes that could not be killed: %s", left)
        for reaper in self._reapers:
            ray.get(reaper.stop.remote(), timeout=60)
            ray.kill(reaper)
        self._storage.cleanup()

    def _fit(self) -> None:
        try:
            self._trainer().fit()
        except Exception as error:  # the edge of a thread: the broker hands it to whoever waits
            logger.debug("Ray Train ended", exc_info=True)
            try:
                ray.get(self._broker.cannot_start.remote(str(error)), timeout=60)
            except ray.exceptions.RayError:
                logger.debug("the broker is gone, too")

    def _trainer(self) -> TorchTrainer:
        spec = self._spec
        return TorchTrainer(
            serve,
            train_loop_config={
                "sweep_id": spec.sweep_id,
                "log_folder": spec.log_folder,
                "extensions_folder": spec.extensions_folder,
            },
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if spec.device == "cuda" else "gloo", timeout_s=COLLECTIVE_TIMEOUT_S
            ),
            scaling_config=ScalingConfig(
                num_workers=spec.world_size,
                resources_per_worker=spec.resources_per_worker,
                use_gpu=spec.device == "cuda",
                placement_strategy=spec.placement,
            ),
            run_config=RunConfig(
                name=f"raysweep-{spec.sweep_id}",
                storage_path=self._storage.name,
                failure_config=FailureConfig(max_failures=-1),
                callbacks=[DeathReporter(spec.sweep_id)],
            ),
        )


def set_train_variables(*, start_timeout_s: float) -> None:
    """Set what Ray Train reads from the environment; it has no arguments for these."""
    os.environ.update(
        RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=str(start_timeout_s),
        RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S="600",
        RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=str(HEALTH_CHECK_INTERVAL_S),
        RAY_TRAIN_ENABLE_PRINT_PATCH="0",
        RAY_CHDIR_TO_TRIAL_DIR="0",
    )
