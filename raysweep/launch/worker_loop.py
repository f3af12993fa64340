"""What Ray Train runs on every worker: a loop that asks the broker for candidates until it is told to leave."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ray

from raysweep.launch.broker import call, find_broker
from raysweep.launch.node_folder import NodeFolder
from raysweep.launch.records import describe_failure
from raysweep.probe import Probe
from raysweep.serde import from_dict, to_dict
from raysweep.trial import LaunchRequest

if TYPE_CHECKING:
    from raysweep.worker.process import RankContext

OPENING_BARRIER_S = 60.0


class GroupLeaves(Exception):
    """Ends this group so that Ray Train starts a fresh one. Not an error."""


def serve(config: Mapping[str, Any]) -> None:
    """Serve candidates on this rank until the broker says that the sweep is over.

    Raises:
        GroupLeaves: when the group was ended; Ray Train then starts a new one.
        Exception: whatever a candidate raised, after the broker was told; it ends the group.
    """
    rank = ray.train.get_context().get_world_rank()
    log_path = _redirect_output(_log_folder(Path(config["log_folder"]), config["sweep_id"]), rank)
    folder = NodeFolder(config["sweep_id"])
    folder.leave_last_words()
    process = ready_rank(note_shared_memory=folder.note_shared_memory)
    generation = process.agree_on_name()
    probe = _probe(process, config)
    broker = find_broker(config["sweep_id"])
    facts = {
        "pid": os.getpid(),
        "world_size": process.world_size,
        "node": process.node,
        "node_id": ray.get_runtime_context().get_node_id(),
        "log_path": str(log_path),
        "probe": to_dict(probe),
    }
    call(broker, "register", generation, rank, facts)
    while True:
        order = call(broker, "ask", generation, rank)
        if order["do"] == "leave":
            if order["final"]:
                return
            raise GroupLeaves(order["reason"])
        if order["do"] == "measure":
            _serve_one(broker, generation, process, order, log_path)


def ready_rank(note_shared_memory: Callable[[Path], None] = lambda path: None) -> RankContext:
    """This worker of Ray Train's as a rank that is ready for DeepSpeed; every worker calls it once.

    `note_shared_memory` is told of a file that stays if this process dies while it gets ready.
    """
    # On the worker only: the driver that ships these functions needs neither torch nor DeepSpeed.
    from raysweep.worker.process import prepare_process, shared_buffer

    context = ray.train.get_context()
    note_shared_memory(shared_buffer(context.get_world_rank()))
    return prepare_process(
        rank=context.get_world_rank(),
        local_rank=context.get_local_rank(),
        local_world_size=context.get_local_world_size(),
        world_size=context.get_world_size(),
        node=ray.util.get_node_ip_address(),
    )


def _probe(process: RankContext, config: Mapping[str, Any]) -> Probe:
    from raysweep.worker.micro_benchmark import micro_benchmark

    return micro_benchmark(process, device=config["device"], precision=config["precision"])


def _log_folder(wanted: Path, sweep_id: str) -> Path:
    """The folder of the results, where this node has one or lets us make it; else one among its temporary files."""
    instead = Path(tempfile.gettempdir(), f"raysweep-logs-{sweep_id}")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError:
        wanted = instead
    if not os.access(wanted, os.W_OK):
        wanted = instead
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted


def _redirect_output(folder: Path, rank: int) -> Path:
    """Send all that this process prints to one file of its own; Ray's terminal output stays quiet."""
    path = folder / f"rank-{rank}-pid-{os.getpid()}.log"
    stream = path.open("a", buffering=1)
    os.dup2(stream.fileno(), sys.stdout.fileno())
    os.dup2(stream.fileno(), sys.stderr.fileno())
    # Ray has put loggers and streams of its own over the first two descriptors.
    sys.stdout, sys.stderr = stream, stream
    logging.basicConfig(stream=stream, level=logging.INFO, force=True)
    return path


def _serve_one(broker: Any, generation: str, process: Any, order: Mapping[str, Any], log_path: Path) -> None:
    from raysweep.worker.loop import measure_candidate

    request = from_dict(LaunchRequest, order["request"])
    sequence = order["sequence"]
    print(f"candidate {request.candidate.candidate_id} ({request.phase}), sequence {sequence}", flush=True)
    with log_path.open("a") as stacks:
        _arm_watchdog(request.deadline_s, stacks)
        try:
            process.barrier(timeout_s=OPENING_BARRIER_S)
            report = measure_candidate(request, process)
        except (Exception, SystemExit) as error:  # the process edge: told to the broker, then the group ends
            traceback.print_exc()
            failure = describe_failure(error, rank=process.rank, node=process.node, log_path=str(log_path))
            call(broker, "fail", generation, process.rank, sequence, to_dict(failure))
            if not failure.data.get("collective"):
                raise
        else:
            call(broker, "deliver", generation, process.rank, sequence, to_dict(report))
        finally:
            faulthandler.cancel_dump_traceback_later()


def _arm_watchdog(deadline_s: float, stacks: IO[str]) -> None:
    """At the deadline write the stacks of all threads and end the process, even inside a stuck collective."""
    faulthandler.dump_traceback_later(deadline_s, exit=True, file=stacks)
