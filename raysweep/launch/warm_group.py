"""The warm worker group: one Ray Train run that outlives its candidates and restarts when a rank dies."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback, WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.launch.broker import call, find_broker, start_broker
from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.node_folder import NodeFolder
from raysweep.launch.process_group import GroupConfig
from raysweep.launch.reaper import MARK, ask_each, find_reapers, start_reapers
from raysweep.launch.records import describe_failure
from raysweep.launch.worker_loop import serve
from raysweep.serde import to_dict
from raysweep.sweep_file import Sweep

logger = logging.getLogger(__name__)

LEAVE_WITHIN_S = 30.0
"""How long a group that was told to leave may take before its processes are killed; an interrupted one is at once."""
HEALTH_CHECK_INTERVAL_S = 0.5
COLLECTIVE_TIMEOUT_S = 300
LOOK_FOR_NODES_EVERY_S = 5.0
NODE_ID_LABEL = "ray.io/node-id"
"""Which Ray itself puts on every node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What a worker group is made of."""

    sweep_id: str
    world_size: int
    """Workers of the first group; later ones have those of their candidates."""
    resources_per_worker: dict[str, float]
    placement: str
    device: str
    log_folder: str
    precision: str = "bf16"
    """Of the micro-benchmark that each group begins with."""
    start_timeout_s: float = 600.0
    fresh: bool = False
    """One worker group a candidate; else a group lives until something ends it."""
    nodes: tuple[str, ...] = ()
    """Addresses of the nodes that the group may use; empty for any."""

    @classmethod
    def of_sweep(cls, sweep: Sweep, *, sweep_id: str, log_folder: str, nodes: Sequence[str] = ()) -> GroupSpec:
        """The group that a sweep file asks for, under a name that no other group on the cluster has."""
        workers = sweep.file.workers
        return cls(
            sweep_id=sweep_id,
            world_size=workers.count,
            resources_per_worker=workers.resources_per_worker,
            placement=workers.placement,
            device=sweep.workload.device,
            precision=sweep.workload.precision,
            log_folder=log_folder,
            start_timeout_s=sweep.file.cluster.group_start_timeout_seconds,
            fresh=sweep.file.launcher == "fresh",
            nodes=tuple(nodes),
        )


class DeathReporter(UserCallback):  # type: ignore[misc]
    """Tells the broker which ranks died of what, and ends what is left of their group before Ray starts the next one.

    Ray calls it in its controller process.
    """

    def __init__(self, sweep_id: str) -> None:
        self._sweep_id = sweep_id

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Ray's hook: rank -> exception."""
        errors = {
            rank: to_dict(describe_failure(getattr(error, "health_check_failure", error), rank=rank))
            for rank, error in worker_exceptions.items()
        }
        call(find_broker(self._sweep_id), "died", errors)
        left = ask_each(find_reapers(self._sweep_id), "end_workers")
        if left:
            logger.error("processes that could not be killed: %s", left)


class TrainHost:
    """Actor class around one Ray Train run: to kill it is to end the run and all of its workers, whatever they do."""

    def run(self, spec: GroupSpec) -> None:
        """Keep a worker group alive until it is told to leave for good, at the size that the broker wants."""
        set_train_variables(start_timeout_s=spec.start_timeout_s)
        while (workers := call(find_broker(spec.sweep_id), "workers_wanted")) is not None:
            try:
                _trainer(spec, NodeFolder(spec.sweep_id).temporary(), workers=workers).fit()
            except WorkerGroupError:
                # Only where a group has nodes of its own: its next run asks for them anew. Who died of what is known.
                continue
            except ray.exceptions.RayActorError as error:  # Ray Train's controller died, and its workers with it
                DeathReporter(spec.sweep_id).after_exception(None, {0: error})
            except Exception as error:  # e.g. a port that another process took meanwhile
                DeathReporter(spec.sweep_id).after_exception(None, {0: error})
            else:
                if call(find_broker(spec.sweep_id), "workers_wanted") is not None:  # a group of another size comes next
                    ask_each(find_reapers(spec.sweep_id), "end_workers")


class WarmGroup:
    """Context manager: on entry the group starts to come up, on exit every process of it is gone."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self.tidied: list[str] = []
        """What sweeps that are over had left on the nodes, a line each; known from entry on."""

    def __enter__(self) -> BrokerClient:
        spec = self._spec
        self._reapers = start_reapers(spec.sweep_id)
        self._ended = threading.Event()
        broker = start_broker(spec.sweep_id, world_size=spec.world_size, start_timeout_s=spec.start_timeout_s)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._host = ray.remote(TrainHost).options(num_cpus=0, scheduling_strategy=here).remote()
        self._run = self._host.run.remote(spec)
        self._client = BrokerClient(broker, sweep_id=spec.sweep_id, fresh=spec.fresh)
        self.tidied += ask_each(self._reapers.values(), "tidy")
        self._newcomers = threading.Thread(target=self._cover_newcomers, daemon=True)
        self._newcomers.start()
        return self._client

    def _cover_newcomers(self) -> None:
        """Give every node that joins, or comes back under another id, a reaper; ends with the group."""
        while not self._ended.wait(LOOK_FOR_NODES_EVERY_S):
            with contextlib.suppress(ray.exceptions.RayError):
                self._reapers |= start_reapers(self._spec.sweep_id, self._reapers)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._client.close("sweep ended" if kind is None else f"sweep ended by {kind.__name__}")
        if kind is None:
            ray.wait([self._run], timeout=LEAVE_WITHIN_S)
        ray.kill(self._host)
        self._ended.set()
        self._newcomers.join()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        left = ask_each([reaper for node_id, reaper in self._reapers.items() if node_id in alive], "close")
        if left:
            logger.error("processes that could not be killed: %s", left)
        for reaper in self._reapers.values():
            ray.kill(reaper)


def _label_of(nodes: Collection[str]) -> dict[str, str] | None:
    """Ray's label selector for nodes by their address, once all of them are up; None for any.

    A node that was lost comes back under another id, so a group that is placed by ids has to be placed anew.
    """
    if not nodes:
        return None
    while True:
        ids = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if set(nodes) <= set(ids):
            return {NODE_ID_LABEL: f"in({','.join(ids[node] for node in nodes)})"}
        # Without a limit of its own: the broker counts the time, and the driver ends this process with the sweep.
        time.sleep(LOOK_FOR_NODES_EVERY_S)


def _trainer(spec: GroupSpec, storage: str, *, workers: int) -> TorchTrainer:
    return TorchTrainer(
        serve,
        train_loop_config={
            "sweep_id": spec.sweep_id,
            "log_folder": spec.log_folder,
            "device": spec.device,
            "precision": spec.precision,
        },
        torch_config=GroupConfig(
            backend="cpu:gloo,cuda:nccl" if spec.device == "cuda" else "gloo", timeout_s=COLLECTIVE_TIMEOUT_S
        ),
        scaling_config=ScalingConfig(
            num_workers=workers,
            resources_per_worker=spec.resources_per_worker,
            use_gpu=spec.device == "cuda",
            placement_strategy=spec.placement,
            label_selector=_label_of(spec.nodes),
        ),
        run_config=RunConfig(
            name=f"raysweep-{spec.sweep_id}",
            storage_path=storage,
            failure_config=FailureConfig(max_failures=0 if spec.nodes else -1),
            callbacks=[DeathReporter(spec.sweep_id)],
            # Children inherit it, so that data loaders and whatever else a worker starts are found and ended, too.
            worker_runtime_env={"env_vars": {MARK: spec.sweep_id}},
        ),
    )


def set_train_variables(*, start_timeout_s: float) -> None:
    """Set what Ray Train reads from the environment; it has no arguments for these."""
    os.environ.update(
        RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=str(start_timeout_s),
        RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S="600",
        RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=str(HEALTH_CHECK_INTERVAL_S),
        RAY_TRAIN_ENABLE_PRINT_PATCH="0",
        # One process less a group. Nothing here acts on the notice of a preemption: a node that goes is a node lost.
        RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="0",
        RAY_CHDIR_TO_TRIAL_DIR="0",
    )
