"""Adds to the failure of a rank that died without an exception what its node knows of the death."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysweep.outcome import DEADLINE_PASSED, FATAL_SIGNAL, KILLED_FOR_MEMORY, NODE_LOST, PROCESS_DIED
from raysweep.trial import RankFailure

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""Facts of a rank (pid, node, node_id, log_path) -> `Reaper.autopsy` of its node; None where nobody is left to ask."""


def examine(failures: Sequence[RankFailure], ranks: Sequence[Mapping[str, Any]], ask: Ask) -> list[RankFailure]:
    """The failures, with the cause of each unexplained death in place of "the process died".

    Args:
        failures: of one launch.
        ranks: facts of its ranks, in rank order; empty where the launch never had any.
        ask: tells how a rank's process died.
    """
    return [
        _explained(each, ranks[each.rank], ask(ranks[each.rank]))
        if PROCESS_DIED in each.type_names and each.rank < len(ranks)
        else each
        for each in failures
    ]


def with_lost_nodes(
    failures: Sequence[RankFailure], ranks: Sequence[Mapping[str, Any]], answers: Callable[[str], bool]
) -> list[RankFailure]:
    """The failures of ranks past their deadline, told apart: what hangs, and what waits for a node that is lost.

    Ray takes up to a minute to find that a node is lost, and a rank that waits for a peer on it may reach its
    deadline before. Asked only where the ranks are on several nodes.

    Args:
        failures: of one launch.
        ranks: facts of its ranks, in rank order.
        answers: node_id -> whether somebody on that node answers.
    """
    nodes = {str(facts["node_id"]): str(facts["node"]) for facts in ranks}
    if len(nodes) < 2 or not any(DEADLINE_PASSED in each.type_names for each in failures):
        return list(failures)
    lost = {node_id for node_id in nodes if not answers(node_id)}
    known = {each.rank: each for each in failures}
    for rank, facts in enumerate(ranks):
        if facts["node_id"] in lost:
            known[rank] = RankFailure(
                rank=rank,
                node=str(facts["node"]),
                type_names=(NODE_LOST,),
                message="the node does not answer: its link, its raylet or the machine is down",
                log_path=str(facts["log_path"]),
            )
    return [known[rank] for rank in sorted(known)]


def _explained(failure: RankFailure, facts: Mapping[str, Any], found: Mapping[str, Any] | None) -> RankFailure:
    who = f"process {facts['pid']}"
    failure = replace(failure, node=str(facts["node"]), log_path=str(facts["log_path"]))
    if found is None:
        return replace(
            failure,
            type_names=(NODE_LOST, *failure.type_names),
            message=f"{who} is gone, and its node does not answer: its link, its raylet or the machine is down",
        )
    if found["exit_signal"] is not None:
        name = signal.Signals(found["exit_signal"]).name
        return replace(
            failure,
            type_names=(FATAL_SIGNAL, *failure.type_names),
            message=f"{who} ended by {name}; its stack is in its log",
            exit_signal=found["exit_signal"],
        )
    if found["killed_for_memory"]:
        return replace(
            failure,
            type_names=(KILLED_FOR_MEMORY, *failure.type_names),
            message=f"{who} was killed by the kernel: the node, or its container, had no memory left",
        )
    return replace(failure, message=f"{who} died without a word (killed from outside, or it called os._exit)")
