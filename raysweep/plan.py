"""All that a sweep will do, before it does it: candidates admitted, pruned and skipped, the rule, and the cost."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from raysweep.budget import CONFIRM_ROUNDS, DEVICE_MARGIN, MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.ds_config import auto_notes, render
from raysweep.limits import Limits
from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.rule import Needs, Recommendation, decide
from raysweep.space import Program, group_key
from raysweep.sweep_file import Sweep
from raysweep.text_files import known_samples
from raysweep.trial import SkipRule, TrialStatus
from raysweep.workload import Workload
from raysweep.zero import sent_bytes_per_step

if TYPE_CHECKING:
    from raysweep.plan_rows import Part, PlanRows

FINALISTS_EXPECTED = 2
COLD_START_S = 20.0
"""From the start of a worker group to its first candidate."""
CANDIDATE_OVERHEAD_S = 3.0
"""Engine built and torn down, within a warm group."""
ASSUMED_FLOP_PER_S = {"cpu": 2e10, "cuda": 1e14}
"""Rate of one worker that the time forecast assumes before anything ran; the deadline allows five times as long."""
COMPILE_S = 30.0
"""Forecast of what `torch.compile` takes of a candidate: 6 to 40 s for small models on CPU."""
COMPILE_DEADLINE_S = 600.0
"""What it may take before the candidate is called hung: that follows from the code of a model, not from its size."""
DEADLINE_FACTOR = 5.0
DEADLINE_MIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """What the sweep is expected to take. Times assume `ASSUMED_FLOP_PER_S`; they are forecasts, not promises."""

    trials: int
    group_starts: int
    wall_s: float
    worker_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Every candidate of the space with its verdict, and what the sweep will cost."""

    rows: PlanRows
    estimates: Mapping[str, MemoryEstimate]
    """candidate_id -> predicted memory; empty where the model's shape is not known."""
    memory_budget_bytes: int | None
    """None: not known before the sweep meets its devices; then nothing is pruned."""
    recommendation: Recommendation | None
    cost: PlanCost
    notes: tuple[str, ...]

    @property
    def admitted(self) -> list[Candidate]:
        """Candidates that may be launched, in the order of the space."""
        return self.rows.admitted()


def make_plan(
    sweep: Sweep,
    *,
    device_memory_bytes: int | None = None,
    unsupported_precision: str = "",
    traced: Mapping[str, MemoryEstimate] | None = None,
    prunes: bool = True,
) -> SweepPlan:
    """Plan a sweep without touching a device.

    Args:
        sweep: the sweep file, read.
        device_memory_bytes: a device's memory, for a budget of `auto`.
        unsupported_precision: why the precision does not run on the devices; every candidate is skipped for it.
        traced: candidate_id -> memory by a fake engine trace, which stands in place of the closed form.
        prunes: whether what is predicted not to fit is left out.

    Raises:
        ConfigError: when the budget is below the smallest candidate, or the text too small for any of them.
    """
    workload = sweep.workload
    budget_bytes = memory_budget_bytes(sweep, device_memory_bytes=device_memory_bytes)
    # Only here: they bring numpy, and `raysweep plan --params` starts without it.
    from raysweep.plan_rows import PlanEstimates, PlanRows

    samples = known_samples(workload.data, sequence_length=workload.sequence_length)
    limits = Limits(
        workload=workload,
        budget_bytes=budget_bytes,
        samples=samples,
        unsupported_precision=unsupported_precision,
        prunes=prunes,
    )
    parts = _parts(sweep, limits, traced or {})
    rows = PlanRows(
        parts=parts,
        make_row=lambda candidate, known: limits.row(
            candidate, legal=known.legal, estimate=known.estimate, sent_bytes=known.sent_bytes
        ),
    )
    estimates = PlanEstimates(rows=rows)
    _check_something_fits(limits, parts)
    notes = [*sweep.notes, *auto_notes(sweep.base_ds_config, sweep.space.deepspeed, workload.shape)]
    if budget_bytes is None:
        notes.append("memory_budget is auto: devices are not known yet, so nothing is pruned (give --device-memory)")
    if workload.shape is None and not estimates:
        notes.append("parameters unknown: install torch or give --params; nothing is pruned")
    return SweepPlan(
        rows=rows,
        estimates=estimates,
        memory_budget_bytes=budget_bytes,
        recommendation=_recommend(sweep, parts, budget_bytes),
        cost=_cost(sweep, [part for part in parts if part.known.status is None]),
        notes=tuple(notes),
    )


def _parts(sweep: Sweep, limits: Limits, traced: Mapping[str, MemoryEstimate]) -> list[Part]:
    """What is known of the candidates of the space, those of a program, stage and interval together."""
    from raysweep.plan_rows import Known, parts_of
    from raysweep.space_families import families

    workload = sweep.workload

    def look(
        own: Workload, candidate: Candidate, settings: ZeroSettings, legal: bool, estimate: MemoryEstimate | None
    ) -> Known:
        if estimate is None and own.shape is not None:
            estimate = estimate_memory(candidate, own, settings)
        status, skip_rule = limits.verdict(candidate, legal=legal, estimate=estimate)
        return Known(
            legal=legal,
            estimate=estimate,
            sent_bytes=sent_bytes_per_step(candidate, own, settings),
            status=status,
            skip_rule=skip_rule,
        )

    @cache
    def settings_of(program: Program, zero_stage: int) -> list[ZeroSettings]:
        """For each set of further axes of a stage; neither interval nor batch is among DeepSpeed's ZeRO settings."""
        family = next(each for each in found if each.program == program and each.zero_stage == zero_stage)
        candidates = [family.candidate(1, 1, choice) for choice in range(len(family.further))]
        own = workload.of(candidates[0])
        configs = (render(each, workload=own, base=sweep.base_ds_config) for each in candidates)
        return [ZeroSettings.from_ds_config(config) for config in configs]

    found = families(sweep.space, global_batch_size=workload.global_batch_size, world_size=workload.world_size)
    parts: list[Part] = []
    for family in found:
        look_at = partial(look, workload.of(family.candidate(1, 1, 0)))
        parts += parts_of(family, settings_of(family.program, family.zero_stage), look_at, traced=traced)
    return parts


def _check_something_fits(limits: Limits, parts: Sequence[Part]) -> None:
    """Refuse a sweep of which no candidate is admitted, unless that is for its precision."""
    if limits.unsupported_precision or any(part.known.status is None for part in parts):
        return
    sizes = [
        min(part.lanes_of(part.known.estimate.lower_bound_bytes))
        for part in parts
        if part.known.status is TrialStatus.PRUNED and part.known.estimate is not None
    ]
    samples = [
        min(part.numbers(limits.samples_needed)) for part in parts if part.known.skip_rule is SkipRule.DATA_TOO_SMALL
    ]
    raise limits.nothing_fits(smallest_bytes=min(sizes, default=None), fewest_samples=min(samples, default=None))


def memory_budget_bytes(sweep: Sweep, *, device_memory_bytes: int | None) -> int | None:
    """The budget of the file, or for `auto` the device's memory less a margin of 5 %; None where neither is known."""
    if sweep.memory_budget_bytes is not None:
        return sweep.memory_budget_bytes
    return None if device_memory_bytes is None else int(device_memory_bytes * (1 - DEVICE_MARGIN))


def search_order(sweep: Sweep, plan: SweepPlan) -> list[Candidate]:
    """The admitted in seeded random order, so that drift of the machine is not mistaken for an axis.

    Of those that the budget of trials reaches, the ones that can share a process come together: each further worker
    group costs its start.
    """
    order = plan.admitted
    random.Random(sweep.file.search.seed).shuffle(order)
    trials = sweep.file.search.most_trials()
    reached, rest = order[:trials], order[len(order[:trials]) :]
    keys = list(dict.fromkeys(group_key(candidate) for candidate in reached))
    return [*sorted(reached, key=lambda candidate: keys.index(group_key(candidate))), *rest]


def predicted_seconds(candidate: Candidate, workload: Workload, window: MeasurementWindow) -> float:
    """Forecast of one launch in a warm group, in seconds.

    FLOPs of a step on one worker = 6 x parameters x tokens, a third more where every block is recomputed; steps are
    the memory pass, the longest warm-up and the window.
    """
    if workload.shape is None:
        return DEADLINE_MIN_S
    tokens = candidate.micro_batch_size_per_gpu * candidate.gradient_accumulation_steps * workload.tokens_per_sample
    recomputed = candidate.recomputed_blocks(workload.shape.blocks) / max(workload.shape.blocks, 1)
    flops = 6 * workload.shape.parameters * tokens * (1 + recomputed / 3)
    step_s = flops / ASSUMED_FLOP_PER_S[workload.device]
    steps = window.memory_pass_steps + window.warmup_max_steps + window.measured_steps
    compile_s = COMPILE_S if candidate.torch_compile else 0.0
    return CANDIDATE_OVERHEAD_S + compile_s + max(steps * step_s, window.measured_s)


def deadline_s(candidate: Candidate, sweep: Sweep) -> float:
    """How long a candidate may take before it is called hung: the file's figure, or max(30 s, 5 x forecast).

    Where blocks are compiled, the compiler has `COMPILE_DEADLINE_S` beside that.
    """
    given = sweep.file.measure.deadline_seconds
    forecast = predicted_seconds(candidate, sweep.workload, sweep.file.measure.window())
    if given is None:
        given = max(DEADLINE_MIN_S, DEADLINE_FACTOR * forecast)
    return given + (COMPILE_DEADLINE_S if candidate.torch_compile else 0.0)


def _recommend(sweep: Sweep, parts: Sequence[Part], budget_bytes: int | None) -> Recommendation | None:
    """The decision rule on this sweep's own estimates, each at the space's smallest micro-batch."""
    workload = sweep.workload
    # Without either the estimates hold no activations, so they say nothing of what fits.
    if workload.shape is None or not (workload.shape.hidden or workload.shape.activations) or budget_bytes is None:
        return None

    def need(stage: int, interval: int, micro_batch: int) -> float:
        candidate = Candidate(
            zero_stage=stage, activation_checkpoint_interval=interval, micro_batch_size_per_gpu=micro_batch
        )
        settings = ZeroSettings.from_ds_config(render(candidate, workload=workload, base=sweep.base_ds_config))
        return estimate_memory(candidate, workload, settings).peak_bytes

    smallest = min(part.family.micro_batch_size_per_gpu.min().item() for part in parts)
    whole_batch = workload.global_batch_size or smallest * workload.world_size
    shape = workload.shape
    return decide(
        Needs(
            one_device_bytes=need(0, 0, whole_batch),
            replica_bytes=need(0, 0, smallest),
            replica_checkpointed_bytes=need(0, 1, smallest),
            stage2_bytes=need(2, 1, smallest),
            stage3_bytes=need(3, 1, smallest),
            single_layer_bytes=(need(0, 0, smallest) - need(0, 1, smallest)) / max(shape.blocks, 1)
            + 2 * shape.block_parameters,
            budget_bytes=budget_bytes,
            world_size=workload.world_size,
        )
    )


def _cost(sweep: Sweep, admitted: Sequence[Part]) -> PlanCost:
    search = sweep.file.search
    candidates = sum(map(len, admitted))
    trials = min(candidates, search.most_trials() or candidates)
    window = sweep.file.measure.window()
    forecasts_s = (part.numbers(lambda each: predicted_seconds(each, sweep.workload, window)) for part in admitted)
    mean_s = math.fsum(itertools.chain.from_iterable(forecasts_s)) / max(candidates, 1)
    rounds = CONFIRM_ROUNDS if search.confirm else 0
    groups = sweep.file.workers.concurrent_groups
    keys = {group_key(part.family.candidate(1, 1, choice)) for part in admitted for choice in part.choices}
    search_starts, confirm_starts = groups * len(keys), rounds
    if sweep.file.launcher == "fresh":
        search_starts, confirm_starts = trials, rounds * FINALISTS_EXPECTED
    # Groups side by side start at the same time, and share the candidates of the search; one of them confirms.
    search_s = (search_starts * COLD_START_S + trials * mean_s) / groups
    search_s = min(search_s, search.budget().seconds_allowed(sweep.file.workers.busy) or search_s)
    confirm_s = confirm_starts * COLD_START_S + rounds * FINALISTS_EXPECTED * mean_s
    worker_s = search_s * sweep.file.workers.busy + confirm_s * sweep.workload.world_size
    return PlanCost(
        trials=trials,
        group_starts=search_starts + confirm_starts,
        wall_s=search_s + confirm_s,
        worker_hours=worker_s / 3600,
    )
