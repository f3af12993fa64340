"""Probes: an actor a node, which says what its node is and measures its links; all that the preflight asks of Ray."""

from __future__ import annotations

import importlib
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.launch.interface import use_interface_of_node
from raysweep.model_schema import FUNCTION_KINDS
from raysweep.preflight.finding import Link, NodeFacts
from raysweep.preflight.links import LinkServer, measure_link
from raysweep.preflight.node_facts import gather

START_WITHIN_S = 120.0
"""For a process on the node: its code is sent there and unpacked first."""
ALL_REDUCE_WITHIN_S = 20.0


class Probe:
    """Actor class, on the node that it is asked about."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._server: LinkServer | None = None

    def facts(self, data: Mapping[str, object], extra_packages: tuple[str, ...]) -> NodeFacts:
        """See `gather`."""
        return gather(address=self._address, data=data, extra_packages=extra_packages)

    def listen(self) -> int:
        """Be the other end of links; the port."""
        self._server = self._server or LinkServer(self._address)
        return self._server.port

    def measure(self, other: str, port: int) -> Link:
        """The link from here to a probe that listens."""
        try:
            round_trip_s, bytes_per_s = measure_link(other, port)
        except OSError as error:
            reason = f"{other}:{port} cannot be reached from {self._address}: {error.strerror or error}"
            return Link(first=self._address, second=other, error=reason)
        return Link(first=self._address, second=other, round_trip_s=round_trip_s, bytes_per_s=bytes_per_s)

    def load(self, model: Mapping[str, Any]) -> str:
        """Load torch, and the module of a `factory` model; the error where one cannot be, else empty.

        An error of the user's own module is theirs, and any type.
        """
        try:
            importlib.import_module("torch.distributed")
            if model["kind"] in FUNCTION_KINDS:
                if model["python_path"] is not None:
                    sys.path.insert(0, model["python_path"])
                importlib.import_module(model[model["kind"]].partition(":")[0])
        except Exception as error:  # whatever an import raises
            return f"{type(error).__name__}: {error}"
        return ""

    def free_port(self) -> int:
        """A port that nobody has."""
        with socket.create_server((self._address, 0), family=_family(self._address)) as server:
            return int(server.getsockname()[1])

    def all_reduce(self, rank: int, world_size: int, address: str, port: int, device: str) -> tuple[float, str]:
        """Sum a one over all probes; the seconds until this one has it, or the error.

        On CUDA over NCCL, on the first device that Ray gave this process.
        """
        import torch
        import torch.distributed as dist

        use_interface_of_node()
        host = f"[{address}]" if ":" in address else address
        began_s = time.monotonic()
        try:
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo",
                init_method=f"tcp://{host}:{port}",
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=ALL_REDUCE_WITHIN_S),
            )
            ones = torch.ones(1, device=device)
            dist.all_reduce(ones)
            total = int(ones.item())
        except (RuntimeError, ValueError) as error:
            return 0.0, str(error).strip().partition("\n")[0]
        return time.monotonic() - began_s, "" if total == world_size else f"the sum is {total}, not {world_size}"


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What probes answered to one question, and which did not."""

    of: Mapping[str, Any]
    """Address -> answer."""
    errors: Mapping[str, str]
    """Address -> why there is none."""


class Probes:
    """Context manager: a probe on each node, ended with the block.

    Args:
        node_ids: address -> node id, of the nodes to ask.
        gpus: a probe takes this share of its node's devices, where it holds workers.
        gpu_nodes: addresses of those nodes.
    """

    def __init__(self, node_ids: Mapping[str, str], *, gpus: float = 0.0, gpu_nodes: Sequence[str] = ()) -> None:
        self._actors = {
            address: ray.remote(Probe)
            .options(
                num_cpus=0,
                num_gpus=gpus if address in gpu_nodes else 0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(address)
            for address, node_id in node_ids.items()
        }

    def ask(self, method: str, arguments: Mapping[str, tuple[Any, ...]], *, within_s: float) -> Answers:
        """Ask several probes at once.

        Args:
            method: of `Probe`.
            arguments: address -> what its probe is asked with.
            within_s: for all of them.
        """
        asked = {getattr(self._actors[address], method).remote(*given): address for address, given in arguments.items()}
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=within_s)
        errors = {asked[each]: f"no answer within {within_s:g} s" for each in silent}
        answers = {}
        for each in answered:
            try:
                answers[asked[each]] = ray.get(each)
            except ray.exceptions.RayError as error:
                errors[asked[each]] = str(error).strip().splitlines()[-1]
        return Answers(of=answers, errors=errors)

    def __enter__(self) -> Probes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for actor in self._actors.values():
            ray.kill(actor)
