"""Mistakes that other tools have made with the same inputs, each by the kind of the case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ray
from builders import make_candidate, make_report, make_request, make_workload, write_sweep

from raysweep.ds_config import render
from raysweep.errors import ConfigError, NoSteps
from raysweep.estimate.ds_check import check_ds_configs
from raysweep.launch.cluster import check_capacity
from raysweep.launch.records import Answer, describe_failure, measurement_of
from raysweep.measurement import reduce_reports
from raysweep.plan import make_plan
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import TrialStatus


def _sweep_of(folder: Path, base: Any, **changes: Any) -> Sweep:
    return load_sweep(write_sweep(folder, deepspeed=base, **changes))


def _rendered(sweep: Sweep) -> list[dict[str, Any]]:
    candidates = make_plan(sweep).admitted
    return [render(candidate, workload=sweep.workload, base=sweep.base_ds_config) for candidate in candidates]


@pytest.mark.parametrize("option", ["hostfile", "num_nodes", "include", "master_addr"])
def test_an_option_of_the_deepspeed_launcher_is_told_that_nodes_come_from_ray_b02(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=f"deepspeed.{option}: 'any': nodes and workers come from Ray") as caught:
        _sweep_of(tmp_path, {option: "any"})
    assert "\n" not in str(caught.value)


def test_a_base_config_with_only_a_stage_is_filled_b06(tmp_path: Path) -> None:
    sweep = _sweep_of(tmp_path, {"zero_optimization": {"stage": 2}}, memory_budget="8GiB")
    configs = _rendered(sweep)
    assert {config["zero_optimization"]["stage"] for config in configs} == {0, 1, 2, 3}
    assert all(c["train_micro_batch_size_per_gpu"] * c["gradient_accumulation_steps"] * 2 == 8 for c in configs)


def test_an_empty_base_config_is_filled_b06(tmp_path: Path) -> None:
    assert len(_rendered(_sweep_of(tmp_path, {}, memory_budget="8GiB"))) == 16


def test_eight_samples_in_50_ms_are_160_a_second_b10() -> None:
    figures = reduce_reports(
        [make_report(0), make_report(1)], workload=make_workload(world_size=2), global_batch_size=8
    )
    assert figures.step_time_s_median == 0.05
    assert figures.samples_per_s == pytest.approx(160)
    micro_batch_size_per_gpu, accumulation = 2, 2
    per_gpu = micro_batch_size_per_gpu * accumulation / figures.step_time_s_median
    assert figures.samples_per_s == pytest.approx(per_gpu * 2)


def test_256_on_seven_workers_is_refused_with_the_legal_splits_b16(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _sweep_of(tmp_path, {}, **{"workers.count": 7, "global_batch_size": 256})
    text = str(caught.value)
    assert "252 = 1 x 36 x 7" in text and "259 = 1 x 37 x 7" in text
    assert text.endswith("(nearest valid: 252 or 259)")


def test_batch_keys_of_the_base_config_are_overridden_and_that_is_said_once_b17(tmp_path: Path) -> None:
    base = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    sweep = _sweep_of(tmp_path, base)
    notes = [note for note in make_plan(sweep).notes if "overridden by each candidate's batch" in note]
    assert [note.partition(" is")[0] for note in notes] == [
        "deepspeed.train_batch_size: 32",
        "deepspeed.train_micro_batch_size_per_gpu: 4",
    ]
    assert all("train_batch_size" not in config for config in _rendered(sweep))
    assert {config["train_micro_batch_size_per_gpu"] for config in _rendered(sweep)} == {1, 2}


def test_auto_in_a_native_config_is_refused_with_its_path_b20(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"deepspeed\.gradient_clipping: 'auto': 'auto' is filled by the Hugging"):
        _sweep_of(tmp_path, {"gradient_clipping": "auto"})
    with pytest.raises(ConfigError, match=r"deepspeed\.zero_optimization\.stage3_max_live_parameters: 'auto'"):
        _sweep_of(tmp_path, {"zero_optimization": {"stage3_max_live_parameters": "auto"}})


def _is_an_integer_everywhere(sweep: Sweep) -> None:
    for config in _rendered(sweep):
        assert type(config["zero_optimization"]["reduce_bucket_size"]) is int
        assert '"reduce_bucket_size": 500000000' in json.dumps(config)


def test_5e8_in_yaml_reaches_deepspeed_as_an_integer_b23(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, deepspeed="BASE", memory_budget="8GiB")
    path.write_text(path.read_text().replace("BASE", "{zero_optimization: {reduce_bucket_size: 5e8}}"))
    assert "5e8" in path.read_text()
    _is_an_integer_everywhere(load_sweep(path))


def test_a_whole_number_written_with_a_point_reaches_deepspeed_as_an_integer_b23(tmp_path: Path) -> None:
    zero = {"reduce_bucket_size": 500000000.0}
    _is_an_integer_everywhere(_sweep_of(tmp_path, {"zero_optimization": zero}, memory_budget="8GiB"))


def test_5e8_in_a_json_base_file_reaches_deepspeed_as_an_integer_b23(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text('{"zero_optimization": {"reduce_bucket_size": 5e8}}')
    _is_an_integer_everywhere(_sweep_of(tmp_path, "base.json", memory_budget="8GiB"))


def test_5e8_as_an_axis_reaches_deepspeed_as_an_integer_b23(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, memory_budget="8GiB", **{"space.deepspeed": "AXIS"})
    path.write_text(path.read_text().replace("AXIS", "{zero_optimization.reduce_bucket_size: [5e8]}"))
    _is_an_integer_everywhere(load_sweep(path))


def test_keys_of_fp16_are_dropped_under_bf16_and_named_b25(tmp_path: Path) -> None:
    base = {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}
    sweep = _sweep_of(tmp_path, base)
    assert (
        "deepspeed.fp16 is dropped because precision is bf16 (its keys initial_scale_power, loss_scale do not apply)"
        in make_plan(sweep).notes
    )
    assert all("fp16" not in config and config["bf16"] == {"enabled": True} for config in _rendered(sweep))
    check_ds_configs([_rendered(sweep)[0]])


def test_a_key_that_the_installed_deepspeed_does_not_know_is_named_with_its_version_b26(tmp_path: Path) -> None:
    sweep = _sweep_of(tmp_path, {"zero_optimization": {"zero_hpz_partition_sise": 1}})
    with pytest.raises(ConfigError, match=r"zero_optimization\.zero_hpz_partition_sise: unknown to DeepSpeed \d") as c:
        check_ds_configs([_rendered(sweep)[0]])
    assert "(nearest valid: zero_hpz_partition_size)" in str(c.value)


def test_a_launch_without_a_step_is_never_completed_b38() -> None:
    failures = [describe_failure(NoSteps(measured=0, wanted=8), rank=rank) for rank in (0, 1)]
    answer = Answer(
        reports=[], failures=failures, group_id="g", position_in_group=1, ranks=[], started_at="", wall_s=0.0
    )
    measurement = measurement_of(make_request(candidate=make_candidate()), answer)
    assert (measurement.status, measurement.figures) == (TrialStatus.FAILED, None)
    assert measurement.reason == "rank 0: NoSteps: 0 of 8 steps measured"


def _node(address: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "NodeManagerAddress": address, "Resources": resources}


def test_more_workers_than_the_cluster_holds_are_refused_b48(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [_node("10.0.0.1", CPU=2), _node("10.0.0.2", CPU=2), _node("10.0.0.3", alive=False, CPU=64)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(ConfigError) as caught:
        check_capacity(world_size=8, resources_per_worker={"CPU": 1})
    assert str(caught.value) == (
        "workers.count: 8: asked: 8 workers of 1 CPU each; available: 4 (10.0.0.1: 2 CPU; 10.0.0.2: 2 CPU; "
        "lost nodes: 10.0.0.3) (nearest valid: 4)"
    )
    check_capacity(world_size=4, resources_per_worker={"CPU": 1})


def test_slots_are_counted_by_node_and_not_in_sum_b48(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [_node("10.0.0.1", CPU=8, GPU=2), _node("10.0.0.2", CPU=3, GPU=4)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(ConfigError, match=r"asked: 4 workers of 2 CPU, 1 GPU each; available: 3 .*10\.0\.0\.2: 3 CPU"):
        check_capacity(world_size=4, resources_per_worker={"CPU": 2, "GPU": 1})
