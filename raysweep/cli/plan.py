"""`raysweep plan`: prints what a sweep will do, or the memory arithmetic of a model."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from textwrap import indent
from typing import TYPE_CHECKING, Any

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
from raysweep.trial import PlanRow, TrialStatus
from raysweep.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from raysweep.plan_rows import Part

MOST_ROWS = 200
"""Of a plan with more candidates people see a summary and the first `FIRST_ROWS`; `--json` has all."""
FIRST_ROWS = 20
MOST_GROUPS = 40
"""Lines of the summary; where stages and intervals make more, the intervals of a stage share one."""

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
    if as_json:
        for text in plan_json(sweep, plan):
            typer.echo(text, nl=False)
    else:
        typer.echo(render_plan(sweep, plan))


def plan_json(sweep: Sweep, plan: SweepPlan) -> Iterator[str]:
    """The plan as JSON, piece by piece: each candidate with its bytes by phase and term."""
    rows = '"candidates": ['
    whole = {
        "name": sweep.file.name,
        "memory_budget_bytes": plan.memory_budget_bytes,
        "model_shape": None if sweep.workload.shape is None else to_dict(sweep.workload.shape),
        "candidates": [],
        "recommendation": None if plan.recommendation is None else to_dict(plan.recommendation),
        "cost": to_dict(plan.cost),
        "notes": list(plan.notes),
    }
    # A quote inside a text is escaped, so what is found is the key.
    before, _, after = json.dumps(whole, indent=2).partition(rows)
    yield before + rows
    for number, row in enumerate(plan.rows):
        yield ("," if number else "") + "\n" + indent(json.dumps(_row_as_dict(plan, row), indent=2), "    ")
    yield "\n  " + after + "\n"


def _row_as_dict(plan: SweepPlan, row: PlanRow) -> dict[str, Any]:
    estimate = plan.estimates.get(row.candidate.candidate_id)
    return {
        "candidate_id": row.candidate.candidate_id,
        **to_dict(row.candidate),
        "global_batch_size": row.global_batch_size,
        "status": row.status or "ADMITTED",
        "skip_rule": row.skip_rule,
        "reason": row.reason,
        "estimate": None if estimate is None else to_dict(estimate),
    }


def render_plan(sweep: Sweep, plan: SweepPlan) -> str:
    """The plan as text for people."""
    workers = ", ".join(str(size) for size in _world_sizes(sweep, plan))
    lines = [
        f"{sweep.file.name}: {len(plan.rows)} candidates on {workers} workers, "
        f"budget {format_bytes(plan.memory_budget_bytes) if plan.memory_budget_bytes else 'auto'} a worker",
        "",
    ]
    shown = plan.rows[:] if len(plan.rows) <= MOST_ROWS else plan.rows[:FIRST_ROWS]
    if len(shown) < len(plan.rows):
        lines += [_summary(plan), "", f"The first {len(shown)}; --json prints all:", ""]
    header = ["candidate", "stage", "interval", "micro-batch", "accumulation", "predicted peak", "phase", "verdict"]
    lines.append(aligned(header, [_cells(plan, row) for row in shown]))
    legend = axes_legend({row.candidate.candidate_id: row.candidate.deepspeed for row in shown})
    if legend:
        lines += ["", *legend]
    reasons = [f"  {row.candidate.candidate_id}: {row.reason}" for row in shown if row.reason]
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


def _world_sizes(sweep: Sweep, plan: SweepPlan) -> list[int]:
    """Numbers of workers that candidates have."""
    return sorted({part.family.program.world_size or sweep.workload.world_size for part in plan.rows.parts})


def _summary(plan: SweepPlan) -> str:
    """How many candidates of each stage and interval are admitted, and up to which micro-batch."""
    groups: dict[tuple[int, int], list[Part]] = defaultdict(list)
    for part in plan.rows.parts:
        groups[part.family.zero_stage, part.family.activation_checkpoint_interval].append(part)
    if len(groups) > MOST_GROUPS:
        stages = sorted({stage for stage, _ in groups})
        merged = {str(stage): [part for key in groups if key[0] == stage for part in groups[key]] for stage in stages}
        lines = [[stage, "all", *_counts(parts)] for stage, parts in merged.items()]
    else:
        lines = [[str(stage), str(interval), *_counts(parts)] for (stage, interval), parts in groups.items()]
    return aligned(["stage", "interval", "candidates", "admitted", "pruned", "skipped", "largest micro-batch"], lines)


def _counts(parts: Sequence[Part]) -> list[str]:
    """Candidates, those of them admitted, pruned and skipped, and the largest micro-batch admitted."""
    statuses = (None, TrialStatus.PRUNED, TrialStatus.SKIPPED)
    counts = [sum(len(part) for part in parts if part.known.status is status) for status in statuses]
    admitted = [part for part in parts if part.known.status is None]
    largest = max((part.largest_micro_batch for part in admitted), default=None)
    return [*map(str, (sum(counts), *counts)), "-" if largest is None else str(largest)]


def _admitted(plan: SweepPlan, estimate: MemoryEstimate | None) -> str:
    """What is predicted above the budget, by less than the prediction may be off, is launched to see."""
    budget_bytes = plan.memory_budget_bytes
    if estimate is None or budget_bytes is None or estimate.peak_bytes <= budget_bytes:
        return "admitted"
    return f"admitted: may fit, at least {format_bytes(estimate.lower_bound_bytes)}"


def _cells(plan: SweepPlan, row: PlanRow) -> list[str]:
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
