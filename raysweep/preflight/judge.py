"""Judges what the nodes say of themselves: one table of checks, which knows neither Ray nor a network."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raysweep.preflight.finding import Finding, Link, NodeFacts
from raysweep.units import GIB, MIB, format_bytes, format_seconds

PROCESS_BYTES = GIB // 2
"""Host memory of a worker beside the model: torch and DeepSpeed take 430 to 490 MiB on CPU; on CUDA not measured."""
SHARED_BUFFER_BYTES = 66 * MIB
"""Of DeepSpeed's shared-memory collective, a rank."""
LEAST_FREE_BYTES = 200 * MIB
LOW_FREE_BYTES = GIB
FOREIGN_SHARE = 0.05
"""Share of a device's memory that others may use before it is told."""
SLOW_BYTES_PER_S = 100e6 / 8
"""100 Mbit/s."""
OF_MEDIAN = 0.25
"""A link below this share of the median link is told; one short stream varies by a factor of 3 on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a sweep asks of its nodes."""

    device: str
    reference: str
    """Address of the node whose versions the others are held against: where the sweep was started."""
    slots: Mapping[str, int]
    """Address -> workers that the node can hold."""
    budget_bytes: int | None = None
    """Of a worker's device; on CPU it is host memory."""
    offloaded_bytes: int = 0
    """Host memory of a worker for states that DeepSpeed's config moves off the device."""
    sent_bytes_per_step: int | None = None
    """Most that a rank sends in a step, over all candidates."""


def judge_nodes(nodes: Sequence[NodeFacts], needs: Needs) -> list[Finding]:
    """What is wrong with the nodes that hold workers, a finding each."""
    reference = next((node for node in nodes if node.address == needs.reference), nodes[0])
    at_work = [node for node in nodes if needs.slots.get(node.address, 0)]
    found = [each for node in at_work for each in _of_node(node, reference, needs)]
    return [*found, *_unlike_devices(at_work)]


def _of_node(node: NodeFacts, reference: NodeFacts, needs: Needs) -> Iterator[Finding]:
    yield from _versions(node, reference, needs.device)
    yield from _memory(node, needs)
    yield from _space(node, needs)
    if needs.device == "cuda":
        yield from _devices(node, needs)
    elif not node.compiler and not node.operator_is_built:
        yield Finding(
            place=node.address,
            problem="no C++ compiler, and DeepSpeed's collective has not been built",
            remedy="install g++ and make (build-essential)",
        )
    if node.data_files == 0:
        yield Finding(
            place=node.address,
            problem="data.path matches no file on this node",
            remedy="put the text under the same path on every node, or on storage that all of them mount",
        )


def _versions(node: NodeFacts, reference: NodeFacts, device: str) -> Iterator[Finding]:
    for package, wanted in reference.versions.items():
        found = node.versions.get(package, "not installed")
        if found == "not installed":
            problem = f"{package} is not installed"
        elif found != wanted:
            problem = f"{package} is {found}, and {wanted} on {reference.address}, where the sweep is started"
        else:
            continue
        yield Finding(place=node.address, problem=problem, remedy=f"install {package} {wanted} on every node")
    if device == "cuda" and node.versions.get("cuda", "none") == "none":
        yield Finding(
            place=node.address,
            problem="workers ask for a GPU, and torch is a build without CUDA",
            remedy="install the CUDA build of torch",
        )


def _memory(node: NodeFacts, needs: Needs) -> Iterator[Finding]:
    workers = needs.slots[node.address]
    each = PROCESS_BYTES + needs.offloaded_bytes + ((needs.budget_bytes or 0) if needs.device == "cpu" else 0)
    wanted = workers * each
    if wanted > node.available_bytes:
        yield Finding(
            place=node.address,
            problem=(
                f"{workers} workers may take {format_bytes(wanted)} of host memory, {format_bytes(each)} each; "
                f"{format_bytes(node.available_bytes)} of {format_bytes(node.memory_bytes)} is free"
            ),
            remedy="ask for more CPUs a worker, so that fewer fit on the node, or offload less",
            is_fatal=wanted > node.memory_bytes,
        )


def _space(node: NodeFacts, needs: Needs) -> Iterator[Finding]:
    for folder, free_bytes in node.free_bytes.items():
        shared = folder == "/dev/shm"
        least = SHARED_BUFFER_BYTES * needs.slots[node.address] if shared else LEAST_FREE_BYTES
        if shared and needs.device != "cpu":
            continue
        if free_bytes < (least if shared else LOW_FREE_BYTES):
            yield Finding(
                place=node.address,
                problem=f"{folder} has {format_bytes(free_bytes)} left; {format_bytes(least)} is the least",
                remedy="give the container a larger /dev/shm (--shm-size)" if shared else "make room there",
                is_fatal=free_bytes < least,
            )


def _devices(node: NodeFacts, needs: Needs) -> Iterator[Finding]:
    if len(node.devices) < needs.slots[node.address]:
        yield Finding(
            place=node.address,
            problem=f"Ray counts {needs.slots[node.address]} GPU slots, nvidia-smi names {len(node.devices)} devices",
            remedy="start Ray there with --num-gpus as it is, and see that nvidia-smi works",
            is_fatal=False,
        )
    for device in node.devices:
        used, total = int(device["used_bytes"]), int(device["total_bytes"])
        if used > FOREIGN_SHARE * total:
            yield Finding(
                place=node.address,
                problem=f"others use {format_bytes(used)} of {format_bytes(total)} of device {device['index']}",
                remedy="end what runs there; it takes memory and speed from every candidate",
                is_fatal=False,
            )


def _unlike_devices(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    kinds = {(str(each["name"]), int(each["total_bytes"])): node for node in nodes for each in node.devices}
    if len(kinds) > 1:
        named = ", ".join(f"{name} of {format_bytes(size)} on {node.address}" for (name, size), node in kinds.items())
        yield Finding(
            place="devices",
            problem=f"they are not alike: {named}",
            remedy="a group is as fast as its slowest device; ask for one kind by a custom resource",
            is_fatal=False,
        )


def judge_links(links: Sequence[Link], needs: Needs, variables: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """What is wrong with the links, a finding each.

    Args:
        links: every pair that was tried.
        needs: of the sweep.
        variables: address -> the environment variables in force there that steer communication.
    """
    measured = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    median = statistics.median(measured) if measured else 0.0
    found = []
    for link in links:
        if link.bytes_per_s is None:
            found.append(_broken(link, variables))
        elif link.bytes_per_s < max(SLOW_BYTES_PER_S, OF_MEDIAN * median):
            found.append(_slow(link, link.bytes_per_s, median, needs))
    return found


def _broken(link: Link, variables: Mapping[str, Mapping[str, str]]) -> Finding:
    force = [f"{node}: {key}={value}" for node in (link.first, link.second) for key, value in variables[node].items()]
    return Finding(
        place=link.pair,
        problem=f"no connection: {link.error} (in force: {', '.join(force) or 'no NCCL_*, GLOO_* or proxy variable'})",
        remedy="open all TCP ports between the nodes, and see that Ray was started with addresses that they can reach",
    )


def _slow(link: Link, bytes_per_s: float, median: float, needs: Needs) -> Finding:
    sends = needs.sent_bytes_per_step
    cost = (
        f"; a step sends up to {format_bytes(sends)} a rank, which takes {format_seconds(sends / bytes_per_s)} on it"
        if sends
        else ""
    )
    return Finding(
        place=link.pair,
        problem=f"slow link: {format_rate(bytes_per_s)} (median of all: {format_rate(median)}){cost}",
        remedy="see which network Ray's addresses are on; NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name another",
        is_fatal=False,
    )


def format_rate(bytes_per_s: float) -> str:
    """`19.8 Mbit/s`, `9.4 Gbit/s`: as links are named, by 1000."""
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"
