"""All that a sweep will do, before it does it: candidates admitted, pruned and skipped, the rule, and the cost."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from raysweep.budget import CONFIRM_ROUNDS, DEVICE_MARGIN, MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.ds_config import auto_notes, render
from raysweep.limits import Limits
from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.rule import Needs, Recommendation, decide
from raysweep.space import group_key
from raysweep.sweep_file import Sweep
from raysweep.text_files import known_samples
from raysweep.trial import PlanRow
from raysweep.workload import Workload
from raysweep.zero import sent_bytes_per_step

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

    rows: tuple[PlanRow, ...]
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
        return [row.candidate for row in self.rows if row.status is None]


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
    samples = known_samples(workload.data, sequence_length=workload.sequence_length)
    limits = Limits(
        workload=workload,
        budget_bytes=budget_bytes,
        samples=samples,
        unsupported_precision=unsupported_precision,
        prunes=prunes,
    )
    estimates: dict[str, MemoryEstimate] = {}
    rows = []
    for candidate, legal in sweep.space.candidates(
        global_batch_size=workload.global_batch_size, world_size=workload.world_size
    ):
        own = workload.of(candidate)
        settings = ZeroSettings.from_ds_config(render(candidate, workload=own, base=sweep.base_ds_config))
        estimate = (traced or {}).get(candidate.candidate_id)
        if estimate is None and workload.shape is not None:
            estimate = estimate_memory(candidate, own, settings)
        if estimate is not None:
            estimates[candidate.candidate_id] = estimate
        sent_bytes = sent_bytes_per_step(candidate, own, settings)
        rows.append(limits.row(candidate, legal=legal, estimate=estimate, sent_bytes=sent_bytes))
    limits.check_something_fits(rows, estimates)
    notes = [*sweep.notes, *auto_notes(sweep.base_ds_config, sweep.space.deepspeed, workload.shape)]
    if budget_bytes is None:
        notes.append("memory_budget is auto: devices are not known yet, so nothing is pruned (give --device-memory)")
    if workload.shape is None and not estimates:
        notes.append("parameters unknown: install torch or give --params; nothing is pruned")
    return SweepPlan(
        rows=tuple(rows),
        estimates=estimates,
        memory_budget_bytes=budget_bytes,
        recommendation=_recommend(sweep, rows, budget_bytes),
        cost=_cost(sweep, [row.candidate for row in rows if row.status is None]),
        notes=tuple(notes),
    )


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


def _recommend(sweep: Sweep, rows: list[PlanRow], budget_bytes: int | None) -> Recommendation | None:
    """The decision rule on this sweep's own estimates, each at the space's smallest micro-batch."""
    workload = sweep.workload
    # Without a hidden size the estimates hold no activations, so they say nothing of what fits.
    if workload.shape is None or not workload.shape.hidden or budget_bytes is None:
        return None

    def need(stage: int, interval: int, micro_batch: int) -> float:
        candidate = Candidate(
            zero_stage=stage, activation_checkpoint_interval=interval, micro_batch_size_per_gpu=micro_batch
        )
        settings = ZeroSettings.from_ds_config(render(candidate, workload=workload, base=sweep.base_ds_config))
        return estimate_memory(candidate, workload, settings).peak_bytes

    smallest = min(row.candidate.micro_batch_size_per_gpu for row in rows)
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


def _cost(sweep: Sweep, admitted: list[Candidate]) -> PlanCost:
    search = sweep.file.search
    trials = min(len(admitted), search.most_trials() or len(admitted))
    window = sweep.file.measure.window()
    mean_s = sum(predicted_seconds(c, sweep.workload, window) for c in admitted) / max(len(admitted), 1)
    rounds = CONFIRM_ROUNDS if search.confirm else 0
    group_starts = len({group_key(candidate) for candidate in admitted}) + rounds
    if sweep.file.launcher == "fresh":
        group_starts = trials + rounds * FINALISTS_EXPECTED
    wall_s = group_starts * COLD_START_S + (trials + rounds * FINALISTS_EXPECTED) * mean_s
    allowed_s = search.budget().seconds_allowed(sweep.workload.world_size)
    wall_s = (
        wall_s if allowed_s is None else min(wall_s, allowed_s + rounds * (COLD_START_S + FINALISTS_EXPECTED * mean_s))
    )
    return PlanCost(
        trials=trials,
        group_starts=group_starts,
        wall_s=wall_s,
        worker_hours=wall_s * sweep.workload.world_size / 3600,
    )
