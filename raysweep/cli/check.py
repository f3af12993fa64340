"""`raysweep check`: prints what the preflight saw of every node and link, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from raysweep.plan import SweepPlan
from raysweep.preflight.finding import NodeFacts, Report
from raysweep.preflight.judge import format_rate
from raysweep.search.ready import check_sweep
from raysweep.sweep_file import Sweep
from raysweep.units import format_bytes, format_seconds


def check(sweep: Sweep, *, address: str | None) -> None:
    """Print the report.

    Raises:
        PreflightError: with a line for each check that failed.
        ConfigError: when the sweep file cannot be right, or there is no room for its workers.
    """
    report, plan = check_sweep(sweep, address=address, note=typer.echo)
    typer.echo(render_report(report, sweep, plan))
    report.refuse()


def render_report(report: Report, sweep: Sweep, plan: SweepPlan) -> str:
    """What was seen, a line each; warnings last. What stands in the way is left to the error."""
    lines = [*_of_sweep(sweep, plan), "", "Nodes:"]
    for node in report.nodes:
        lines += _of_node(node, report.slots.get(node.address, 0))
    if report.links:
        lines += ["", "Links (one TCP stream, which says nothing of RDMA):"]
        lines += [
            f"  {link.pair}: "
            + (
                f"{format_rate(link.bytes_per_s)}, round trip {1000 * (link.round_trip_s or 0):.2f} ms"
                if link.bytes_per_s is not None
                else link.error
            )
            for link in report.links
        ]
    if report.all_reduce_s is not None:
        lines.append(
            f"A sum over the nodes took {format_seconds(report.all_reduce_s)}, the start of the group included."
        )
    warnings = [finding.line() for finding in report.findings if not finding.is_fatal]
    if warnings:
        lines += ["", "Warnings:", *(f"  {each}" for each in warnings)]
    if not report.findings:
        lines += ["", "All is well."]
    return "\n".join(lines)


def _of_sweep(sweep: Sweep, plan: SweepPlan) -> Iterator[str]:
    shape = sweep.workload.shape
    size = f"{shape.parameters:.4g} parameters in {shape.blocks} blocks" if shape else "its size is not known"
    yield f"Model: {sweep.workload.model['kind']}, {size}, in {sweep.workload.precision}"
    yield "DeepSpeed config: the installed DeepSpeed knows every key"
    yield f"Candidates: {plan.rows.admitted_count} of {len(plan.rows)} may be launched"
    yield f"Results: {sweep.results}"
    yield from sweep.notes


def _of_node(node: NodeFacts, slots: int) -> Iterator[str]:
    versions = ", ".join(f"{package} {found}" for package, found in node.versions.items())
    free = ", ".join(f"{format_bytes(size)} in {folder}" for folder, size in node.free_bytes.items())
    yield f"  {node.address} ({node.host}): {slots} slots"
    yield f"    {versions}"
    yield f"    host memory {format_bytes(node.available_bytes)} of {format_bytes(node.memory_bytes)} free; {free}"
    yield from (
        f"    device {each['index']}: {each['name']}, {format_bytes(float(each['total_bytes']))}"
        for each in node.devices
    )
