"""Gets a sweep ready to be launched: its file judged, Ray joined, the nodes looked over; shared by run and check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray

from raysweep.ds_config import render
from raysweep.estimate.ds_check import check_ds_configs
from raysweep.launch.cluster import ray_session, share_nodes, wait_for_capacity
from raysweep.launch.code import code_for_nodes
from raysweep.launch.devices import device_memory_bytes, unsupported_precision
from raysweep.plan import SweepPlan, make_plan
from raysweep.preflight.finding import Finding, Report
from raysweep.preflight.judge import Needs
from raysweep.preflight.look import look_over
from raysweep.preflight.results_uri import check_results
from raysweep.serde import canonical_json
from raysweep.space_families import families
from raysweep.sweep_file import Sweep
from raysweep.workload import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A cluster that has room for a sweep."""

    slots: Mapping[str, int]
    """Address -> workers that the node can hold."""
    places: Sequence[Sequence[str]]
    """The nodes of each worker group; of a single one none, which may be anywhere."""
    report: Report | None
    """What the preflight saw; None where it was left out."""


@contextmanager
def ready_cluster(
    sweep: Sweep, *, address: str | None, check: bool, note: Callable[[str], None], prunes: bool = True
) -> Iterator[Ready]:
    """Ray for the length of a block, with room for the sweep's workers.

    Args:
        sweep: the sweep file, read.
        address: an existing Ray cluster; by default the file's, else a local Ray is started.
        check: look the nodes over; whoever asks decides what to do with what was found.
        note: told what is waited for.
        prunes: whether a sweep of which nothing is predicted to fit is refused.

    Raises:
        ConfigError: when the file cannot be right, or there is no room.
        PreflightError: when Ray cannot be joined, or DeepSpeed not be asked.
    """
    # The file is judged before a cluster is asked for; only a budget of `auto` has to wait for its devices.
    plan = make_plan(sweep, prunes=prunes)
    configs = _distinct_configs(sweep)
    check_ds_configs(configs)
    section, workers = sweep.file.cluster, sweep.file.workers
    code = code_for_nodes(sweep.workload.model)
    with ray_session(address=address or section.address, environment=sweep.file.environment, code=code):
        slots = wait_for_capacity(
            world_size=workers.count,
            groups=workers.concurrent_groups,
            resources_per_worker=workers.resources_per_worker,
            placement=workers.placement,
            limit_s=section.wait_for_nodes_seconds,
            note=note,
        )
        places: Sequence[Sequence[str]] = [()]
        if workers.concurrent_groups > 1:
            places = share_nodes(
                slots, groups=workers.concurrent_groups, world_size=workers.count, placement=workers.placement
            )
        yield Ready(slots=slots, places=places, report=_look(sweep, plan, configs, slots) if check else None)


def _look(sweep: Sweep, plan: SweepPlan, configs: Sequence[Mapping[str, Any]], slots: Mapping[str, int]) -> Report:
    workload = sweep.workload
    known = ((part, part.known.sent_bytes) for part in plan.rows.parts)
    sent = [max(part.lanes_of(sent_bytes)) for part, sent_bytes in known if sent_bytes is not None]
    needs = Needs(
        device=workload.device,
        reference=ray.util.get_node_ip_address(),
        slots={address: min(count, workload.world_size) for address, count in slots.items()},
        budget_bytes=sweep.memory_budget_bytes,
        offloaded_bytes=max(offloaded_bytes(sweep, config) for config in configs) if configs else 0,
        sent_bytes_per_step=max(sent, default=None),
    )
    gpus = sweep.file.workers.resources_per_worker.get("GPU", 0.0)
    report = look_over(needs, model=workload.model, data=workload.data, gpus=gpus)
    return replace(report, findings=[*report.findings, *check_results(sweep.results)])


def offloaded_bytes(sweep: Sweep, config: Mapping[str, Any]) -> int:
    """Host memory of a worker for what a rendered config moves off the device.

    12 bytes a parameter of optimizer states and, at stage 3, the parameters, both divided by the workers (ZeRO-Offload
    keeps fp32 master, momentum and variance on the host). 0 where the model's shape is not known.
    """
    shape, zero = sweep.workload.shape, config.get("zero_optimization", {})
    if shape is None:
        return 0
    each = 0
    if zero.get("offload_optimizer", {}).get("device") == "cpu":
        each += 12 * shape.trainable
    if zero.get("offload_param", {}).get("device") == "cpu":
        each += BYTES_PER_ELEMENT[sweep.workload.precision] * shape.parameters
    return each // sweep.workload.world_size


def _distinct_configs(sweep: Sweep) -> list[Mapping[str, Any]]:
    """A rendered config for each set of values of the further axes; stage and batch are ours, so they are right."""
    workload = sweep.workload
    found = families(sweep.space, global_batch_size=workload.global_batch_size, world_size=workload.world_size)
    candidates = [candidate for family in found for candidate in family.one_of_each_choice()]
    distinct = {canonical_json(dict(candidate.deepspeed)): candidate for candidate in candidates}
    return [render(each, workload=workload, base=sweep.base_ds_config) for each in distinct.values()]


def precision_lacks(sweep: Sweep) -> str:
    """Why the sweep's precision does not run on its devices; empty where it does. Ray has to be joined."""
    return unsupported_precision(
        device=sweep.workload.device,
        precision=sweep.workload.precision,
        resources_per_worker=sweep.file.workers.resources_per_worker,
    )


def device_memory(sweep: Sweep) -> int | None:
    """Bytes of a worker's device, where the budget follows from them; else None. Ray has to be joined."""
    if sweep.memory_budget_bytes is not None:
        return None
    return device_memory_bytes(
        device=sweep.workload.device,
        resources_per_worker=sweep.file.workers.resources_per_worker,
        world_size=sweep.workload.world_size,
    )


def check_sweep(sweep: Sweep, *, address: str | None, note: Callable[[str], None]) -> tuple[Report, SweepPlan]:
    """Everything that `run` would look at before it launches, and the plan for the devices that are there.

    Args:
        sweep: the sweep file, read, with its model built.
        address: an existing Ray cluster; by default the file's, else a local Ray is started.
        note: told what is waited for.

    Raises:
        ConfigError: when the file cannot be right, or there is no room.
        PreflightError: when Ray cannot be joined, or DeepSpeed not be asked.
    """
    with ready_cluster(sweep, address=address, check=True, note=note) as ready:
        assert ready.report is not None, "the nodes are looked over where it is asked for"
        report = ready.report
        if report.fatal:
            return report, make_plan(sweep)
        lacks = precision_lacks(sweep)
        if lacks:
            remedy = "choose another precision"
            report = replace(
                report, findings=[*report.findings, Finding(place="devices", problem=lacks, remedy=remedy)]
            )
        return report, make_plan(sweep, device_memory_bytes=device_memory(sweep), unsupported_precision=lacks)
