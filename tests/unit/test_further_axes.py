"""Offload, hpZ, automatic bucket sizes and constraints: which candidates there are, and what each becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_workload, write_sweep

from raysweep.candidate import Candidate
from raysweep.cli.plan import render_plan
from raysweep.ds_config import auto_size, prepare_base, render
from raysweep.errors import ConfigError
from raysweep.memory import estimate_memory
from raysweep.plan import make_plan
from raysweep.search.optuna_searcher import OptunaSearcher
from raysweep.space import SearchSpace, group_key
from raysweep.step_work import step_work
from raysweep.sweep_file import load_sweep
from raysweep.workload import ModelShape
from raysweep.zero_settings import ZeroSettings

OFFLOAD = "zero_optimization.offload_optimizer.device"
HPZ = "zero_optimization.zero_hpz_partition_size"
BUCKET = "zero_optimization.reduce_bucket_size"


def found(world_size: int = 2, **axes: Any) -> list[str]:
    """Ids of the candidates of a small space."""
    space = SearchSpace(
        **{
            "zero_stage": (0, 1, 2, 3),
            "activation_checkpoint_interval": (0,),
            "micro_batch_size_per_gpu": (1, 2),
        }
        | axes
    )
    return [each.candidate_id for each, _ in space.candidates(global_batch_size=8, world_size=world_size)]


def test_an_axis_that_is_left_at_its_default_changes_no_id() -> None:
    plain = found()
    assert set(plain) < set(found(offload_optimizer=("none", "cpu"), zero_hpz_partition_size=(1, 2)))


def test_offload_and_hpz_are_there_only_at_stages_that_have_them() -> None:
    assert len(found(offload_optimizer=("none", "cpu"))) == 8 + 6
    assert len(found(zero_hpz_partition_size=(1, 2))) == 8 + 2
    assert len(found(offload_optimizer=("cpu",))) == 6


def test_ids_stay_short_and_differ() -> None:
    ids = found(offload_optimizer=("none", "cpu"), zero_hpz_partition_size=(1, 2), deepspeed={BUCKET: (1, 2)})
    assert len(set(ids)) == len(ids) and max(map(len, ids)) <= 24


def test_the_id_of_a_candidate_with_an_axis_is_the_one_of_older_results() -> None:
    assert make_candidate(deepspeed={OFFLOAD: "cpu"}).candidate_id == "s2-k0-b2-g1-69bdfb"


def test_offload_and_hpz_start_groups_of_their_own() -> None:
    keys = {group_key(make_candidate(zero_stage=3, deepspeed=each)) for each in ({}, {OFFLOAD: "cpu"}, {HPZ: 2})}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("constraint", "count"),
    [
        ("zero_stage < 3", 6),
        ("zero_stage == 3 or micro_batch_size_per_gpu * gradient_accumulation_steps * world_size == 8", 8),
        ("gradient_accumulation_steps <= 2", 4),
        ("zero_stage in (1, 2) and global_batch_size == 8", 4),
        ("not (zero_stage == 0 and micro_batch_size_per_gpu == min(1, 2))", 7),
        ("zero_optimization.reduce_bucket_size > 5", 8),
        ("offload_optimizer == 'none' and zero_hpz_partition_size == 1", 8),
    ],
)
def test_what_breaks_a_constraint_is_no_candidate(constraint: str, count: int) -> None:
    axes = {"deepspeed": {BUCKET: (4, 8)}} if "bucket" in constraint else {}
    assert len(found(constraints=(constraint,), **axes)) == count


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ("zero_stag < 3", r"zero_stag is not known.*nearest valid: zero_stage"),
        ("zero_stage <", "is no expression"),
        ("zero_stage", "must be true or false; it gives 0"),
        ("zero_stage / 0 > 1", "cannot be evaluated"),
        ("open('/etc/passwd')", "cannot be evaluated"),
        ("zero_stage.__class__ == 1", "cannot be evaluated"),
        ("zero_stage < 'x'", "cannot be evaluated"),
        ("zero_stage > 3", "leave no candidate"),
    ],
)
def test_a_constraint_that_cannot_be_right_is_refused(tmp_path: Path, constraint: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_sweep(write_sweep(tmp_path, **{"space.constraints": [constraint]}))
    assert caught.value.data["key"] == "space.constraints"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space.zero_hpz_partition_size": [3]}, r"must divide the 2 workers \(nearest valid: 2\)"),
        ({"space.offload_optimizer": ["disk"]}, "'none' or 'cpu'"),
        ({"space.deepspeed": {OFFLOAD: ["cpu"]}}, "has an axis of its own: space.offload_optimizer"),
        ({"space.deepspeed": {"gradient_clipping": ["auto"]}}, "has no auto"),
        ({"space.zero_stage": [0], "space.offload_optimizer": ["cpu"]}, "no stage of the space"),
    ],
)
def test_an_axis_that_cannot_be_right_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_sweep(write_sweep(tmp_path, **changes))


def test_an_automatic_bucket_is_a_number_before_anything_runs(tmp_path: Path) -> None:
    changes = {"space.deepspeed": {BUCKET: ["auto", 4096]}, "deepspeed.zero_optimization.allgather_bucket_size": "auto"}
    sweep = load_sweep(write_sweep(tmp_path, **changes))
    shape = sweep.workload.shape
    assert shape is not None
    expected = max(shape.parameters // 8, shape.largest_parameter)
    candidates = [row.candidate for row in make_plan(sweep).rows]
    configs = [render(each, workload=sweep.workload, base=sweep.base_ds_config) for each in candidates]
    sizes = {config["zero_optimization"]["reduce_bucket_size"] for config in configs}
    assert sizes == {expected, 4096}
    assert {config["zero_optimization"]["allgather_bucket_size"] for config in configs} == {expected}


def test_a_plan_says_what_hashes_and_automatic_sizes_are(tmp_path: Path) -> None:
    changes = {"space.offload_optimizer": ["none", "cpu"], "deepspeed.zero_optimization.reduce_bucket_size": "auto"}
    sweep = load_sweep(write_sweep(tmp_path, **changes))
    plan = make_plan(sweep)
    assert [note for note in plan.notes if "reduce_bucket_size: auto is" in note and "elements" in note]
    assert f"-69bdfb: {OFFLOAD} = cpu" in render_plan(sweep, plan)


def test_an_automatic_bucket_is_between_the_largest_parameter_and_the_default() -> None:
    def shape(parameters: int, largest: int) -> ModelShape:
        return ModelShape(
            parameters=parameters, block_parameters=1, largest_parameter=largest, blocks=1, hidden=1, vocab_size=1
        )

    assert auto_size(500, shape(80, 5), key=BUCKET) == 10
    assert auto_size(500, shape(80, 20), key=BUCKET) == 20
    assert auto_size(500, shape(80_000, 20), key=BUCKET) == 500
    with pytest.raises(ConfigError, match="not known"):
        auto_size(500, None, key=BUCKET)


def test_offload_on_cpu_lets_torchs_adam_stand_in() -> None:
    base, _ = prepare_base({}, precision="bf16", optimizer=None)
    config = render(make_candidate(deepspeed={OFFLOAD: "cpu"}), workload=make_workload(), base=base)
    assert config["zero_force_ds_cpu_optimizer"] is False and config["optimizer"]["params"]["torch_adam"] is True
    on_cuda = render(make_candidate(deepspeed={OFFLOAD: "cpu"}), workload=make_workload(device="cuda"), base=base)
    assert "zero_force_ds_cpu_optimizer" not in on_cuda
    assert ZeroSettings.from_ds_config(on_cuda).optimizer_on_host


def test_offload_takes_the_states_off_a_gpu_and_its_work_to_the_host() -> None:
    workload = make_workload(device="cuda")
    kept, gone = ZeroSettings(), ZeroSettings(optimizer_on_host=True)
    candidate = make_candidate()
    assert estimate_memory(candidate, workload, gone).peak_bytes < estimate_memory(candidate, workload, kept).peak_bytes
    on_host, on_device = step_work(candidate, workload, gone), step_work(candidate, workload, kept)
    assert on_host.optimizer_bytes == 0 < on_host.offload_bytes and on_device.offload_bytes == 0


def test_hpz_keeps_the_parameters_a_second_time() -> None:
    workload = make_workload(world_size=4)
    assert workload.shape is not None
    at_3, at_2 = make_candidate(zero_stage=3), make_candidate(zero_stage=2)

    def peak(candidate: Candidate, size: int) -> int:
        return estimate_memory(candidate, workload, ZeroSettings(zero_hpz_partition_size=size)).peak_bytes

    assert peak(at_3, 2) - peak(at_3, 1) == 2 * workload.shape.parameters // 2
    assert peak(at_2, 2) == peak(at_2, 1)


def test_optuna_takes_candidates_that_do_not_have_every_axis() -> None:
    candidates = [make_candidate(zero_stage=stage) for stage in (1, 2)]
    candidates += [make_candidate(zero_stage=stage, deepspeed={OFFLOAD: "cpu"}) for stage in (1, 2)]
    searcher = OptunaSearcher(candidates)
    proposed = [searcher.suggest(str(number)) for number in range(4)]
    assert {each["candidate_id"] for each in proposed if isinstance(each, dict)} == {
        each.candidate_id for each in candidates
    }
