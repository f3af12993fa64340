"""`raysweep plan`: prints what a sweep will do, or the memory arithmetic of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import typer

from raysweep.candidate import Candidate, axes_legend
from raysweep.cli.terminal import tell_terminal
from raysweep.estimate.facts import with_facts
from raysweep.estimate.tracing import Traces, legal_candidates
from raysweep.memory import MemoryEstimate
from raysweep.plan import ASSUMED_FLOP_PER_S, SweepPlan, make_plan
from raysweep.serde import to_dict
from raysweep.sketch import SketchInput, render_sketch, sketch_plan
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.tables import aligned
from raysweep.units import format_bytes, format_seconds

Tracer = Callable[[Sweep, Sequence[Candidate]], Traces]
"""Predicts the memory of candidates of a sweep by fake engine traces."""


def plan_sketch(*, as_json: bool, device_memory_bytes: int | None, **shape: Any) -> None:
    """Print the arithmetic of a model described on the command line."""
    given = {} if device_memory_bytes is None else {"device_memory_bytes": device_memory_bytes}
    sketch = sketch_plan(SketchInput(**shape, **given))
    typer.echo(json.dumps(sketch, indent=2) if as_json else render_sketch(sketch))


def plan_file(path: str, *, device_memory_bytes: int | None, as_json: bool, tracer: Tracer | None = None) -> None:
    """Print the plan of a sweep file, with memory by closed form, or by `tracer`."""
    sweep = with_facts(load_sweep(path), note=tell_terminal)
    traced = None
    if tracer is not None:
        traces = tracer(sweep, legal_candidates(sweep))
        traced, sweep = traces.estimates, replace(sweep, notes=(*sweep.notes, *traces.notes))
    plan = make_plan(sweep, device_memory_bytes=device_memory_bytes, traced=traced)
    typer.echo(json.dumps(plan_as_dict(sweep, plan), indent=2) if as_json else render_plan(sweep, plan))


def plan_as_dict(sweep: Sweep, plan: SweepPlan) -> dict[str, Any]:
    """The plan as plain JSON values: each candidate with its bytes by phase and term."""
    return {
        "name": sweep.file.name,
        "memory_budget_bytes": plan.memory_budget_bytes,
        "model_shape": None if sweep.workload.shape is None else to_dict(sweep.workload.shape),
        "candidates": [
            {
                "candidate_id": row.candidate.candidate_id,
                **to_dict(row.candidate),
                "global_batch_size": row.global_batch_size,
                "status": row.status or "ADMITTED",
                "skip_rule": row.skip_rule,
                "reason": row.reason,
                "estimate": to_dict(plan.estimates[row.candidate.candidate_id])
                if row.candidate.candidate_id in plan.estimates
                else None,
            }
            for row in plan.rows
        ],
        "recommendation": None if plan.recommendation is None else to_dict(plan.recommendation),
        "cost": to_dict(plan.cost),
        "notes": list(plan.notes),
    }


def render_plan(sweep: Sweep, plan: SweepPlan) -> str:
    """The plan as text for people."""
    workers = ", ".join(str(size) for size in sorted({row.world_size for row in plan.rows}))
    lines = [
        f"{sweep.file.name}: {len(plan.rows)} candidates on {workers} workers, "
        f"budget {format_bytes(plan.memory_budget_bytes) if plan.memory_budget_bytes else 'auto'} a worker",
        "",
        aligned(
            ["candidate", "stage", "interval", "micro-batch", "accumulation", "predicted peak", "phase", "verdict"],
            [_cells(plan, row) for row in plan.rows],
        ),
    ]
    legend = axes_legend({row.candidate.candidate_id: row.candidate.deepspeed for row in plan.rows})
    if legend:
        lines += ["", *legend]
    reasons = [f"  {row.candidate.candidate_id}: {row.reason}" for row in plan.rows if row.reason]
    if reasons:
        lines += ["", "Why not:", *reasons]
    if plan.recommendation is not None:
        lines += ["", f"Rule {plan.recommendation.rule}: {plan.recommendation.text}"]
    cost = plan.cost
    lines += [
        "",
        f"Expected: {cost.trials} trials, {cost.group_starts} worker group starts, "
        f"about {format_seconds(cost.wall_s)}, {cost.worker_hours:.2f} worker-hours "
        f"(assuming {ASSUMED_FLOP_PER_S[sweep.workload.device]:.0e} FLOP/s a worker; a forecast, not a measurement)",
        *[f"Note: {note}" for note in plan.notes],
    ]
    return "\n".join(lines)


def _admitted(plan: SweepPlan, estimate: MemoryEstimate | None) -> str:
    """What is predicted above the budget, by less than the prediction may be off, is launched to see."""
    budget_bytes = plan.memory_budget_bytes
    if estimate is None or budget_bytes is None or estimate.peak_bytes <= budget_bytes:
        return "admitted"
    return f"admitted: may fit, at least {format_bytes(estimate.lower_bound_bytes)}"


def _cells(plan: SweepPlan, row: Any) -> list[str]:
    candidate = row.candidate
    estimate = plan.estimates.get(candidate.candidate_id)
    return [
        candidate.candidate_id,
        str(candidate.zero_stage),
        str(candidate.activation_checkpoint_interval),
        str(candidate.micro_batch_size_per_gpu),
        str(candidate.gradient_accumulation_steps),
        format_bytes(estimate.peak_bytes) if estimate else "unknown",
        estimate.peak_phase if estimate else "-",
        str(row.status or _admitted(plan, estimate)),
    ]
