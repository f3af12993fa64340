"""A plan made in columns is the plan made candidate by candidate, for any space."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_profile, write_sweep

from raysweep import lanes
from raysweep.candidate import Candidate
from raysweep.ds_config import render
from raysweep.limits import Limits
from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.plan import SweepPlan, make_plan, predicted_seconds
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trace_estimate import TRACED
from raysweep.trial import PlanRow, SkipRule, TrialStatus
from raysweep.workload import ModelShape, Workload
from raysweep.zero import sent_bytes_per_step

CONSTRAINTS = (
    "zero_stage < 3 or micro_batch_size_per_gpu >= 4",
    "micro_batch_size_per_gpu * gradient_accumulation_steps % 3 != 1",
    "micro_batch_size_per_gpu ** 2 < 150 or activation_checkpoint_interval > 0",
    "global_batch_size < 90 or zero_stage in [1, 2] or activation_checkpoint_interval > 0",
    "micro_batch_size_per_gpu in [1, 2, 3, 5, 8, 12, 40]",
    "world_size > 1 or not torch_compile",
    "micro_batch_size_per_gpu < 20 or attn_implementation != 'eager'",
)


def _one_by_one(sweep: Sweep, samples: int | None = None) -> tuple[list[PlanRow], dict[str, MemoryEstimate]]:
    """Rows and predictions as the definitions have them, each candidate on its own."""
    workload = sweep.workload
    limits = Limits(workload=workload, budget_bytes=sweep.memory_budget_bytes, samples=samples)
    rows, estimates = [], {}
    for candidate, legal in sweep.space.candidates(
        global_batch_size=workload.global_batch_size, world_size=workload.world_size
    ):
        own = workload.of(candidate)
        settings = ZeroSettings.from_ds_config(render(candidate, workload=own, base=sweep.base_ds_config))
        estimate = estimate_memory(candidate, own, settings)
        estimates[candidate.candidate_id] = estimate
        sent_bytes = sent_bytes_per_step(candidate, own, settings)
        rows.append(limits.row(candidate, legal=legal, estimate=estimate, sent_bytes=sent_bytes))
    return rows, estimates


def _random_sweep(folder: Path, chance: random.Random) -> Sweep:
    """At most some hundred candidates of a model of odd sizes; the budget is the least that one of them needs."""
    heads = chance.choice([1, 2, 3])
    world_size = chance.choice([1, 2, 6])
    fixed = chance.random() < 0.5
    micro_batches = sorted(chance.sample(range(1, 50), chance.choice([1, 3, 6, 40])))
    if fixed and 1 not in micro_batches:
        micro_batches = [1, *micro_batches]
    space: dict[str, Any] = {
        "zero_stage": sorted(chance.sample(range(4), chance.choice([1, 2, 4]))),
        "activation_checkpoint_interval": sorted(chance.sample(range(5), chance.choice([1, 2]))),
        "micro_batch_size_per_gpu": micro_batches,
        "constraints": chance.sample(CONSTRAINTS, chance.choice([0, 0, 1, 2])),
    }
    if not fixed:
        space["gradient_accumulation_steps"] = chance.choice([[1], [1, 2], [3, 1]])
    # Many micro-batches, or many further axes: both together only take long.
    has_axes = len(micro_batches) < 10
    if has_axes and chance.random() < 0.5:
        space["offload_optimizer"] = ["none", "cpu"]
        space["zero_hpz_partition_size"] = sorted({1, world_size})
    if has_axes and chance.random() < 0.5:
        space["deepspeed"] = {
            "zero_optimization.reduce_bucket_size": ["auto", 3001, 200_000],
            "zero_optimization.overlap_comm": [True, False],
        }
    if chance.random() < 0.4:
        space["torch_compile"] = chance.choice([[False, True], [True, False]])
    if chance.random() < 0.4:
        space["world_size"] = sorted({1, max(1, 5 * world_size // 6), world_size})
    zero = {
        "stage3_max_live_parameters": chance.choice([20_000, 10**9]),
        "stage3_prefetch_bucket_size": chance.choice([999, 50_000]),
        "stage3_param_persistence_threshold": chance.choice([100, 100_000]),
    }
    resources = {"CPU": 1, "GPU": 1} if chance.random() < 0.5 else {"CPU": 1}
    model = {
        "kind": "gpt",
        "blocks": chance.randrange(1, 9),
        "hidden": heads * chance.choice([7, 16, 31]),
        "heads": heads,
        "vocab_size": chance.choice([11, 256, 3001]),
        "tied": chance.random() < 0.5,
    }
    precision = chance.choice(["bf16", "fp16", "fp32"])
    accumulation = {"data_types": {"grad_accum_dtype": "fp32"}} if chance.random() < 0.3 else {}
    path = write_sweep(
        folder,
        model=model,
        sequence_length=chance.choice([7, 16, 33]),
        precision=precision,
        workers={"count": world_size, "resources_per_worker": resources},
        global_batch_size=world_size * 60 if fixed else "free",
        deepspeed={"zero_optimization": zero, **accumulation},
        space=space,
        memory_budget="64MiB",
    )
    sweep = load_sweep(path)
    if chance.random() < 0.4:
        sweep = _of_kind_hf(sweep, chance, tied=bool(model["tied"]))
    plan = make_plan(sweep, prunes=False)
    bounds = sorted(plan.estimates[each.candidate_id].lower_bound_bytes for each in plan.admitted)
    file = sweep.file.model_copy(update={"memory_budget": chance.choice(bounds)})
    return replace(sweep, file=file)


def _of_kind_hf(sweep: Sweep, chance: random.Random, *, tied: bool) -> Sweep:
    """The sweep with a model of kind hf, some with measured activations, some with attention as an axis."""
    shape = sweep.workload.shape
    assert shape is not None
    if chance.random() < 0.6:
        other = replace(make_profile(), buffer_bytes=chance.choice([0, 900]))
        shape = replace(shape, activations=make_profile(), activations_by_attention={"sdpa": other})
    attention = chance.choice([(None,), ("eager", "sdpa"), ("eager", None)])
    workload = replace(sweep.workload, model={"kind": "hf", "tied": tied}, shape=shape)
    return replace(sweep, workload=workload, space=replace(sweep.space, attn_implementation=attention))


@pytest.mark.parametrize("seed", range(24))
def test_every_row_is_the_one_that_a_walk_over_the_candidates_gives(tmp_path: Path, seed: int) -> None:
    sweep = _random_sweep(tmp_path, random.Random(seed))
    rows, estimates = _one_by_one(sweep)
    plan = make_plan(sweep)
    assert list(plan.rows) == rows
    assert list(plan.estimates.items()) == list(estimates.items())
    assert plan.admitted == [row.candidate for row in rows if row.status is None]
    window = sweep.file.measure.window()
    forecasts_s = [predicted_seconds(each, sweep.workload, window) for each in plan.admitted]
    # Trials, one start for each set of further axes, and three rounds of two finalists.
    mean_s = sum(forecasts_s) / len(forecasts_s)
    assert plan.cost.wall_s == pytest.approx(20 * plan.cost.group_starts + (plan.cost.trials + 6) * mean_s)
    assert plan.cost.trials == len(plan.admitted)


def test_the_random_sweeps_have_every_verdict(tmp_path: Path) -> None:
    plans = [make_plan(_random_sweep(tmp_path, random.Random(seed))) for seed in range(6)]
    verdicts = {(row.status, row.skip_rule) for plan in plans for row in plan.rows}
    assert verdicts >= {(None, None), (TrialStatus.PRUNED, None), (TrialStatus.SKIPPED, SkipRule.NO_LEGAL_BATCH)}


def _large(folder: Path, **changes: Any) -> Sweep:
    many = {"space.micro_batch_size_per_gpu": list(range(1, 101)), "global_batch_size": "free"}
    return load_sweep(write_sweep(folder, **many | changes))


@pytest.mark.parametrize("kind", ["gpt", "hf"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_family_of_a_hundred_is_looked_at_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, device: str
) -> None:
    calls = []

    def counted(*arguments: Any) -> MemoryEstimate:
        calls.append(arguments)
        return estimate_memory(*arguments)

    offload = ["none", "cpu"] if device == "cuda" else ["none"]
    sweep = _large(tmp_path, memory_budget="2MiB", **{"space.offload_optimizer": offload})
    model = {**sweep.workload.model, "kind": kind}
    sweep = replace(sweep, workload=replace(sweep.workload, model=model, device=device))
    monkeypatch.setattr("raysweep.plan.estimate_memory", counted)
    plan = make_plan(sweep)
    assert 0 < len(plan.admitted) < len(plan.rows) and len(plan.rows) >= 800
    assert len(calls) < len(plan.rows) / 10


def test_programs_are_families_whose_workload_is_made_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = {"space.world_size": [1, 2], "space.torch_compile": [False, True]}
    sweep = _large(tmp_path, memory_budget="2MiB", **axes)
    shape = sweep.workload.shape
    assert shape is not None
    workload = replace(sweep.workload, model={"kind": "hf"}, shape=replace(shape, activations=make_profile()))
    space = replace(sweep.space, attn_implementation=("eager", None))
    sweep = replace(sweep, workload=workload, space=space)
    own, calls = Workload.of, []

    def counted(*arguments: Any) -> MemoryEstimate:
        calls.append(arguments)
        return estimate_memory(*arguments)

    def noted(workload: Workload, candidate: Candidate) -> Workload:
        calls.append((workload, candidate))
        return own(workload, candidate)

    monkeypatch.setattr("raysweep.plan.estimate_memory", counted)
    monkeypatch.setattr(Workload, "of", noted)
    plan = make_plan(sweep)
    # Of a program that is not compiled eight families, a stage and interval each; of a compiled one none has stage 3.
    assert len(plan.rows) == 2 * 2 * (8 + 6) * 100
    assert len(calls) < len(plan.rows) / 10
    estimates = {name: plan.estimates[f"s0-k0-b2-g1{name}"] for name in ("", "-w1-eager", "-eager-compile", "-compile")}
    assert [each.phases == estimates[""].phases for each in estimates.values()] == [True, False, False, True]


def test_without_columns_the_plan_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = ["micro_batch_size_per_gpu % 7 != 3", "zero_stage > 1"]
    sweep = _large(tmp_path, memory_budget="2MiB", **{"space.constraints": constraints})
    together = make_plan(sweep)
    monkeypatch.setattr(lanes, "MOST_RUNS", 0)
    alone = make_plan(sweep)
    assert len(alone.rows.parts) == len(alone.rows) > 10 * len(together.rows.parts)
    assert list(alone.rows) == list(together.rows) and dict(alone.estimates) == dict(together.estimates)
    assert alone.cost == together.cost and alone.recommendation == together.recommendation


def test_rows_are_a_sequence(tmp_path: Path) -> None:
    rows = make_plan(_large(tmp_path)).rows
    every = list(rows)
    assert (rows[0], rows[-1], rows[5]) == (every[0], every[799], every[5])
    assert rows[790:] == every[790:] and rows[::-100] == every[::-100] and rows[799:900] == every[-1:]
    assert every[17] in rows and rows.index(every[17]) == 17
    for outside in (800, -801):
        with pytest.raises(IndexError):
            rows[outside]


def test_estimates_are_a_mapping(tmp_path: Path) -> None:
    estimates = make_plan(_large(tmp_path)).estimates
    assert len(estimates) == len(list(estimates)) == 800
    assert "s3-k2-b100-g1" in estimates and "s3-k2-b101-g1" not in estimates and "nonsense" not in estimates
    assert "s3-k2-b01-g1" not in estimates and "s3-k2-b1-g1-abcdef" not in estimates
    assert estimates.get("s3-k1-b1-g1") is None


def test_a_traced_candidate_has_the_trace_and_the_others_the_closed_form(tmp_path: Path) -> None:
    sweep = _large(tmp_path)
    closed = make_plan(sweep)
    trace = replace(closed.estimates["s1-k0-b50-g1"], peak_bytes=2**40, source=TRACED)
    plan = make_plan(sweep, traced={"s1-k0-b50-g1": trace})
    assert plan.estimates["s1-k0-b50-g1"] == trace
    changed = [row.candidate.candidate_id for row, before in zip(plan.rows, closed.rows, strict=True) if row != before]
    assert changed == ["s1-k0-b50-g1"]
    assert [row.reason.endswith(", by trace") for row in plan.rows if row.status is TrialStatus.PRUNED] == [True]


def test_a_model_of_unknown_shape_has_rows_and_only_traced_estimates(tmp_path: Path) -> None:
    sweep = _large(tmp_path)
    known = make_plan(sweep).estimates["s0-k0-b3-g1"]
    unknown = replace(sweep, workload=replace(sweep.workload, shape=None))
    plan = make_plan(unknown)
    assert len(plan.admitted) == 800 and len(plan.estimates) == 0 and list(plan.estimates) == []
    assert plan.rows[7].estimated_memory_bytes is None and plan.rows[7].estimated_sent_bytes_per_step is None
    traced = make_plan(unknown, traced={"s0-k0-b3-g1": known})
    assert dict(traced.estimates) == {"s0-k0-b3-g1": known}


def test_values_written_twice_are_rows_twice(tmp_path: Path) -> None:
    axis = {"space.deepspeed": {"zero_optimization.overlap_comm": [True, True]}}
    plan: SweepPlan = make_plan(load_sweep(write_sweep(tmp_path, **axis)))
    assert [row.candidate.candidate_id for row in plan.rows[:4]] == [
        Candidate(
            zero_stage=0,
            activation_checkpoint_interval=0,
            micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=4 // micro_batch,
            deepspeed={"zero_optimization.overlap_comm": True},
        ).candidate_id
        for micro_batch in (1, 1, 2, 2)
    ]


def test_further_axes_that_are_sizes_are_looked_at_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any) -> MemoryEstimate:
        calls.append(arguments)
        return estimate_memory(*arguments)

    axes = {
        "zero_optimization.reduce_bucket_size": [1000 * each for each in range(1, 16)] + [2**70],
        "zero_optimization.stage3_max_live_parameters": [10**5, 10**9],
        "zero_optimization.overlap_comm": [True, False],
    }
    changes = {"space.deepspeed": axes, "space.constraints": ["zero_optimization.reduce_bucket_size != 7000"]}
    sweep = load_sweep(write_sweep(tmp_path, memory_budget="2MiB", **changes))
    monkeypatch.setattr("raysweep.plan.estimate_memory", counted)
    plan = make_plan(sweep)
    assert len(plan.rows) == 16 * 15 * 2 * 2
    assert len(calls) < len(plan.rows) / 10
    rows, estimates = _one_by_one(sweep)
    assert list(plan.rows) == rows and list(plan.estimates.items()) == list(estimates.items())


def test_who_asks_for_the_axes_of_many_is_called_for_each(tmp_path: Path) -> None:
    axis = {"space.deepspeed": {"zero_optimization.reduce_bucket_size": [1000, 2000, 3000, 4000, 5000]}}
    plan = make_plan(load_sweep(write_sweep(tmp_path, **axis)))
    part = max(plan.rows.parts, key=len)
    sizes = part.numbers(lambda each: each.deepspeed["zero_optimization.reduce_bucket_size"])
    assert sorted(set(sizes)) == [1000, 2000, 3000, 4000, 5000] and len(sizes) == len(part) > 4


def test_a_space_far_beyond_64_bits_is_planned_exactly(tmp_path: Path) -> None:
    sweep = _large(tmp_path, memory_budget="auto")
    huge = ModelShape(
        parameters=10**18,
        block_parameters=10**16,
        largest_parameter=10**12,
        blocks=4,
        hidden=10**9,
        vocab_size=10**12,
    )
    sweep = replace(sweep, workload=replace(sweep.workload, shape=huge))
    rows, _ = _one_by_one(sweep)
    assert list(make_plan(sweep).rows) == rows
    assert rows[-1].estimated_memory_bytes is not None and rows[-1].estimated_memory_bytes > 2**64
