"""`raysweep memory`: explains one candidate's memory phase by phase."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from raysweep.allocations import without
from raysweep.candidate import Candidate
from raysweep.cli.terminal import tell_terminal
from raysweep.cli.tracing import trace_with_bar
from raysweep.cuda_allocator import CudaMemory, replay_on_cuda
from raysweep.ds_config import render
from raysweep.errors import ConfigError, nearest_name
from raysweep.estimate.facts import with_facts
from raysweep.estimate.tracing import Traces, legal_candidates
from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.plan import memory_budget_bytes
from raysweep.serde import to_dict
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.tables import aligned
from raysweep.trace import RankTrace
from raysweep.trace_estimate import CPU_ONLY_KINDS
from raysweep.units import format_bytes

BAR_WIDTH = 40
"""Characters of the longest bar."""


def explain(path: str, *, candidate_id: str, as_json: bool) -> None:
    """Print what one candidate of a sweep file holds, by phase and kind.

    Raises:
        ConfigError: when the sweep has no such candidate.
    """
    sweep = with_facts(load_sweep(path), note=tell_terminal)
    candidate = _named(candidate_id, legal_candidates(sweep))
    traces = trace_with_bar(sweep, [candidate])
    world_size = sweep.workload.of(candidate).world_size
    closed = _closed_form(sweep, candidate)
    estimate = traces.estimates.get(candidate_id, closed)
    if estimate is None:
        raise ConfigError(key="--candidate", value=candidate_id, rule="; ".join(traces.notes))
    ranks = traces.ranks.get(candidate_id, ())
    if as_json:
        typer.echo(json.dumps(_as_dict(candidate, estimate, closed, ranks, traces, world_size=world_size), indent=2))
        return
    budget_bytes = memory_budget_bytes(sweep, device_memory_bytes=None)
    typer.echo(_rendered(candidate, estimate, closed, ranks, budget_bytes, world_size=world_size))
    for note in traces.notes:
        typer.echo(f"Note: {note}")


def _named(candidate_id: str, candidates: Sequence[Candidate]) -> Candidate:
    known = {candidate.candidate_id: candidate for candidate in candidates}
    if candidate_id not in known:
        near = nearest_name(candidate_id, known)
        rule = "is no candidate of this sweep with a legal batch; `raysweep plan` lists them"
        raise ConfigError(key="--candidate", value=candidate_id, rule=rule, nearest=near)
    return known[candidate_id]


def _closed_form(sweep: Sweep, candidate: Candidate) -> MemoryEstimate | None:
    if sweep.workload.shape is None:
        return None
    workload = sweep.workload.of(candidate)
    config = render(candidate, workload=workload, base=sweep.base_ds_config)
    return estimate_memory(candidate, workload, ZeroSettings.from_ds_config(config))


def _as_dict(
    candidate: Candidate,
    estimate: MemoryEstimate,
    closed: MemoryEstimate | None,
    ranks: Sequence[RankTrace],
    traces: Traces,
    *,
    world_size: int,
) -> dict[str, Any]:
    device = estimate.device
    return {
        "candidate_id": candidate.candidate_id,
        "estimate": to_dict(estimate),
        "closed_form": None if closed is None else to_dict(closed),
        "ranks": [to_dict(trace) for trace in ranks],
        "on_cuda_unconfirmed": [to_dict(_cuda_memory(trace, world_size)) for trace in ranks if device == "cuda"],
        "notes": list(traces.notes),
    }


def _rendered(
    candidate: Candidate,
    estimate: MemoryEstimate,
    closed: MemoryEstimate | None,
    ranks: Sequence[RankTrace],
    budget_bytes: int | None,
    *,
    world_size: int,
) -> str:
    limit = f", budget {format_bytes(budget_bytes)}" if budget_bytes else ""
    lines = [
        f"{candidate.candidate_id}: peak {format_bytes(estimate.peak_bytes)} ({estimate.peak_phase}) by "
        f"{estimate.source}, within {estimate.band:.1%} on {estimate.device}{limit}"
    ]
    if closed is not None and estimate is not closed:
        lines.append(f"closed form: {format_bytes(closed.peak_bytes)} ({closed.peak_phase})")
    for phase, kinds in estimate.phases.items():
        lines += ["", f"{phase}: {format_bytes(sum(kinds.values()))}", _bars(kinds, estimate.peak_bytes)]
    for trace in ranks:
        lines += ["", _described(trace)]
        if estimate.device == "cuda":
            lines += [_on_cuda(trace, world_size)]
    if ranks:
        rows = [[each.name, str(each.count), format_bytes(each.size_bytes)] for each in ranks[0].collectives]
        lines += ["", f"Collectives of a step, rank {ranks[0].rank}:", aligned(["name", "calls", "bytes"], rows)]
    return "\n".join(lines)


def _cuda_memory(trace: RankTrace, world_size: int) -> CudaMemory:
    return replay_on_cuda(without(trace.allocations, CPU_ONLY_KINDS), world_size=world_size)


def _on_cuda(trace: RankTrace, world_size: int) -> str:
    found = _cuda_memory(trace, world_size)
    return (
        f"rank {trace.rank} on CUDA, by replay of the trace in the rules of torch's allocator, unconfirmed: "
        f"allocated {format_bytes(found.allocated_bytes)}, reserved {format_bytes(found.reserved_bytes)}, "
        f"used with context and NCCL {format_bytes(found.used_bytes)}"
    )


def _bars(kinds: Any, peak_bytes: int) -> str:
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    rows = [[kind, format_bytes(size), "#" * round(BAR_WIDTH * size / peak_bytes)] for kind, size in ordered]
    return aligned(["kind", "bytes", ""], rows)


def _described(trace: RankTrace) -> str:
    phases = ", ".join(f"{phase} {format_bytes(size)}" for phase, size in trace.phase_peaks_bytes.items())
    return (
        f"rank {trace.rank}: {phases}; at rest {format_bytes(trace.resting_bytes)}; "
        f"build {format_bytes(trace.build_peak_bytes)}; "
        f"beside these, copies of the backend's own {format_bytes(trace.workspace_bytes)}"
    )
