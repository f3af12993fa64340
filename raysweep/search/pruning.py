"""What is predicted before a sweep launches anything, and what becomes of candidates that are predicted not to fit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from raysweep.candidate import Candidate
from raysweep.estimate.tracing import Traces, trace_sweep
from raysweep.launch.attempts import run_candidate
from raysweep.launch.launcher import Launcher
from raysweep.memory import MemoryEstimate
from raysweep.plan import SweepPlan, make_plan
from raysweep.search.observer import Observer
from raysweep.search.requests import RequestMaker
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement, Phase, TrialStatus

TRACE_ABOVE_S = 900.0
"""Forecast of a sweep from which on `memory_model: auto` traces: below it traces may cost more than they save."""
FOREIGN_UPPER = 2.0
"""Highest peak of a model that is not the built-in one over its closed form (docs/memory.md)."""

Tracer = Callable[[Sweep, Sequence[Candidate]], Traces]
"""Predicts the memory of candidates of a sweep by fake engine traces."""


def trace_quietly(sweep: Sweep, candidates: Sequence[Candidate]) -> Traces:
    """Trace without telling anyone how far it is."""
    return trace_sweep(sweep, candidates, progress=lambda done, needed: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How a run predicts memory, and what it does with what cannot fit."""

    force: bool = False
    """Launch also what is predicted not to fit."""
    audit_share: float = 0.0
    """Share of the pruned candidates that is launched after the search, to see whether the prediction was right."""
    tracer: Tracer = trace_quietly
    calibrates: bool = True
    """Whether the search takes in what trials of earlier sweeps showed of the predictions."""

    def plan(
        self,
        sweep: Sweep,
        *,
        device_memory_bytes: int | None,
        unsupported_precision: str,
        note: Callable[[str], None],
    ) -> tuple[Sweep, SweepPlan]:
        """The sweep, with notes of its traces, and its plan by closed form and traces."""

        def planned(sweep: Sweep, traced: Mapping[str, MemoryEstimate] | None = None) -> SweepPlan:
            return make_plan(
                sweep,
                device_memory_bytes=device_memory_bytes,
                unsupported_precision=unsupported_precision,
                traced=traced,
                prunes=not self.force,
            )

        plan = planned(sweep)
        candidates = [] if self.force else worth_tracing(sweep, plan)
        if not candidates:
            return sweep, plan
        note(f"tracing {len(candidates)} candidates on this machine before anything is launched")
        traces = self.tracer(sweep, candidates)
        sweep = replace(sweep, notes=(*sweep.notes, *traces.notes))
        return sweep, planned(sweep, traces.estimates)


def worth_tracing(sweep: Sweep, plan: SweepPlan) -> list[Candidate]:
    """What `memory_model` asks to be traced: all that may be launched, nothing, or what the closed form leaves open.

    `auto` traces the candidates between the bounds of the closed form, where the sweep is forecast to take more than
    `TRACE_ABOVE_S`.
    """
    model = sweep.file.memory_model
    if model == "trace":
        return [row.candidate for row in plan.rows if row.status is not TrialStatus.SKIPPED]
    if model == "closed_form" or plan.cost.wall_s <= TRACE_ABOVE_S:
        return []
    return [each for each in plan.admitted if _is_open(sweep, plan, each)]


def _is_open(sweep: Sweep, plan: SweepPlan, candidate: Candidate) -> bool:
    """Whether the closed form cannot tell that an admitted candidate fits."""
    estimate, budget_bytes = plan.estimates.get(candidate.candidate_id), plan.memory_budget_bytes
    if budget_bytes is None:
        return False
    if estimate is None:
        return True
    is_foreign = sweep.workload.model["kind"] != "gpt"
    upper_bytes = FOREIGN_UPPER * estimate.peak_bytes if is_foreign else estimate.upper_bound_bytes
    return upper_bytes > budget_bytes


def audit_sample(plan: SweepPlan, *, share: float, seed: int) -> list[Candidate]:
    """The pruned candidates to launch all the same: a seeded sample of `share` of them, one at least."""
    pruned = [row.candidate for row in plan.rows if row.status is TrialStatus.PRUNED]
    count = math.ceil(share * len(pruned))
    return random.Random(seed).sample(pruned, count)


def audit(
    launcher: Launcher,
    candidates: Sequence[Candidate],
    requests: RequestMaker,
    observer: Observer,
    *,
    on_measured: Callable[[list[Measurement]], None],
) -> str:
    """Launch pruned candidates; what that showed, in a sentence."""
    fitting = []
    for candidate in candidates:
        observer.launching(candidate.candidate_id, Phase.AUDIT, 0)
        launches = run_candidate(launcher, replace(requests.make(candidate), phase=Phase.AUDIT))
        on_measured(launches)
        if launches[-1].status is TrialStatus.COMPLETED:
            fitting.append(candidate.candidate_id)
    found = f"{', '.join(fitting)} fitted: pruned wrongly" if fitting else "none fitted"
    return f"audit: {len(candidates)} pruned candidates were launched; {found}"
