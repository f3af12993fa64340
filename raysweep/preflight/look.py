"""Looks over the nodes of a sweep, one after another question: reachable, facts, code, links, a small all-reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from raysweep.preflight.finding import Finding, Link, NodeFacts, Report
from raysweep.preflight.judge import Needs, judge_links, judge_nodes
from raysweep.preflight.links import rounds as rounds_of
from raysweep.preflight.links import unreachable
from raysweep.preflight.node_facts import gather
from raysweep.preflight.probe import ALL_REDUCE_WITHIN_S, START_WITHIN_S, Answers, Probes

LINK_WITHIN_S = 30.0
PACKAGES_OF_KIND = {"hf": ("transformers", "peft")}
"""Kind of model -> packages that it needs on every node."""


def look_over(needs: Needs, *, model: Mapping[str, Any], data: Mapping[str, object], gpus: float) -> Report:
    """Look over every node of the cluster that Ray is joined to.

    On one node no process is started and no link is measured: there it takes milliseconds.

    Args:
        needs: of the sweep.
        model: the workload's model section.
        data: its data section.
        gpus: of a worker.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    extra = PACKAGES_OF_KIND.get(model["kind"], ())
    if {node["NodeManagerAddress"] for node in nodes} == {needs.reference}:
        facts = [gather(address=needs.reference, data=data, extra_packages=extra)]
        return Report(nodes=facts, slots=needs.slots, findings=judge_nodes(facts, needs))
    alive, cut_off = reached_from(needs.reference, nodes)
    if cut_off:
        findings = judge_links(cut_off, needs, {each: {} for link in cut_off for each in (link.first, link.second)})
        return Report(nodes=[], slots=needs.slots, links=cut_off, findings=findings)
    at_work = [address for address in alive if needs.slots.get(address)]
    asked = {address: node["NodeID"] for address, node in alive.items() if address in (*at_work, needs.reference)}
    with Probes(asked, gpus=gpus, gpu_nodes=at_work) as probes:
        return _Look(probes=probes, needs=needs, model=model, at_work=at_work).report(list(asked), data, extra)


def reached_from(here: str, nodes: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Mapping[str, Any]], list[Link]]:
    """Nodes that Ray takes for alive, by address, and those whose raylet cannot be reached from here.

    Ray needs up to a minute to notice that a raylet is gone. Where one was started anew on its node, Ray knows two of
    the same address for a while; the one that answers counts.
    """

    def reason(node: Mapping[str, Any]) -> str:
        return unreachable(node["NodeManagerAddress"], int(node["NodeManagerPort"]))

    with ThreadPoolExecutor(max_workers=min(32, len(nodes))) as pool:
        reasons = list(pool.map(reason, nodes))
    pairs = list(zip(nodes, reasons, strict=True))
    reached = {node["NodeManagerAddress"]: node for node, reason in pairs if not reason}
    cut_off = []
    for node, why in pairs:
        address, port = node["NodeManagerAddress"], node["NodeManagerPort"]
        if address not in reached:
            error = f"{address}:{port} cannot be reached from {here}: {why}"
            cut_off.append(Link(first=here, second=address, error=error))
    return reached, cut_off


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Several nodes being asked."""

    probes: Probes
    needs: Needs
    model: Mapping[str, Any]
    at_work: Sequence[str]
    """Addresses of the nodes that hold workers."""

    def report(self, asked: Sequence[str], data: Mapping[str, object], extra: tuple[str, ...]) -> Report:
        """Ask the questions in their order; each builds on the one before."""
        answers = self.probes.ask("facts", {each: (data, extra) for each in asked}, within_s=START_WITHIN_S)
        facts: list[NodeFacts] = [answers.of[address] for address in asked if address in answers.of]
        findings = _silent(answers, "see that the node works (ray status), and what its raylet.err says")
        if findings:
            return Report(nodes=facts, slots=self.needs.slots, findings=findings)
        findings = judge_nodes(facts, self.needs)
        links = self._links()
        findings += judge_links(links, self.needs, {node.address: node.variables for node in facts})
        seconds, failed = None, [each for each in findings if each.is_fatal]
        if not failed:
            seconds, failed = self._all_reduce({node.address: node for node in facts})
            findings += failed
        return Report(nodes=facts, slots=self.needs.slots, links=links, all_reduce_s=seconds, findings=findings)

    def _links(self) -> list[Link]:
        """Every pair of nodes at work, those of a round at the same time."""
        if len(self.at_work) < 2:
            return []
        ports = self.probes.ask("listen", {each: () for each in self.at_work}, within_s=LINK_WITHIN_S).of
        found: list[Link] = []
        for pairs in rounds_of(self.at_work):
            arguments = {one: (other, ports.get(other, 0)) for one, other in pairs}
            answers = self.probes.ask("measure", arguments, within_s=LINK_WITHIN_S)
            for one, other in pairs:
                error = answers.errors.get(one, "")
                found.append(Link(first=one, second=other, error=error) if error else answers.of[one])
        return found

    def _all_reduce(self, facts: Mapping[str, NodeFacts]) -> tuple[float | None, list[Finding]]:
        """A sum over one process a node, as the workers will make it; the seconds it took, and what went wrong."""
        loaded = self.probes.ask("load", {each: (self.model,) for each in self.at_work}, within_s=START_WITHIN_S)
        findings = _silent(loaded, "see what the node is busy with")
        findings += [
            Finding(
                place=address, problem=error, remedy="install what is missing there, or send it (model.python_path)"
            )
            for address, error in loaded.of.items()
            if error
        ]
        if findings or len(self.at_work) < 2:
            return None, findings
        first = self.at_work[0]
        port = self.probes.ask("free_port", {first: ()}, within_s=LINK_WITHIN_S).of.get(first, 0)
        arguments = {
            address: (rank, len(self.at_work), first, port, self.needs.device)
            for rank, address in enumerate(self.at_work)
        }
        answers = self.probes.ask("all_reduce", arguments, within_s=ALL_REDUCE_WITHIN_S + 5)
        errors = dict(answers.errors) | {address: error for address, (_, error) in answers.of.items() if error}
        if not errors:
            return max(seconds for seconds, _ in answers.of.values()), []
        tried = ", ".join(f"rank {rank} on {address}" for rank, address in enumerate(self.at_work))
        force = [f"{each}: {key}={value}" for each in self.at_work for key, value in facts[each].variables.items()]
        told = "; ".join(f"{address}: {error}" for address, error in errors.items())
        return None, [
            Finding(
                place=" - ".join(self.at_work),
                problem=(
                    f"a sum over the nodes failed ({tried}; meeting at {first}:{port}): {told} "
                    f"(in force: {', '.join(force) or 'no NCCL_*, GLOO_* or proxy variable'})"
                ),
                remedy="name the interface between the nodes in `environment`: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME",
            )
        ]


def _silent(answers: Answers, remedy: str) -> list[Finding]:
    return [Finding(place=address, problem=error, remedy=remedy) for address, error in answers.errors.items()]
