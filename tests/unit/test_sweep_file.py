"""Sweep files are read into nouns; each mistake gets one message with its path, the rule and the nearest choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import write_sweep

from raysweep.errors import ConfigError
from raysweep.sweep_file import load_sweep
from raysweep.yaml_numbers import load_json, load_yaml


def _refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_sweep(write_sweep(folder, **changes))
    return str(caught.value)


def test_a_sweep_file_becomes_our_nouns(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    assert sweep.space.zero_stage == (0, 1, 2, 3)
    assert (sweep.workload.world_size, sweep.workload.global_batch_size, sweep.workload.device) == (2, 8, "cpu")
    assert sweep.workload.shape is not None and sweep.workload.shape.parameters == 59_584
    assert sweep.memory_budget_bytes == 64 * 2**20
    assert sweep.file.measure.window().measured_steps == 8


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, results=None, memory_budget=None))
    assert (sweep.results, sweep.memory_budget_bytes) == ("results/tiny", None)
    assert sweep.workload.model["positions"] == 16
    assert sweep.base_ds_config["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-3}}


def test_a_free_global_batch_and_gpus(tmp_path: Path) -> None:
    changes = {"global_batch_size": "free", "workers.resources_per_worker": {"CPU": 4, "GPU": 1}}
    sweep = load_sweep(write_sweep(tmp_path, **changes, **{"space.gradient_accumulation_steps": [1, 4]}))
    assert (sweep.workload.global_batch_size, sweep.workload.device) == (None, "cuda")
    assert sweep.space.gradient_accumulation_steps == (1, 4)


def test_a_config_is_read_once_and_travels_with_the_workload(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    for config in (".", "config.json"):
        sweep = load_sweep(write_sweep(tmp_path, model={"kind": "hf", "config": config, "head": "causal"}))
        assert sweep.workload.model["config"] == {"model_type": "gpt2", "n_layer": 2}
        assert sweep.workload.shape is None


def test_a_factory_is_found_beside_the_sweep_file(tmp_path: Path) -> None:
    model = {"kind": "factory", "factory": "mine:make", "python_path": "."}
    sweep = load_sweep(write_sweep(tmp_path, model=model))
    assert sweep.workload.model["python_path"] == str(tmp_path.resolve())


def test_a_choice_that_was_written_twice_is_one_choice(tmp_path: Path) -> None:
    assert load_sweep(write_sweep(tmp_path, **{"space.zero_stage": [2, 1, 2]})).space.zero_stage == (2, 1)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model.hiden", "model.hiden: unknown key; known here: kind, blocks, hidden, heads, vocab_size, positions"),
        ("workers.cuont", "(nearest valid: workers.count)"),
        ("search.trails", "(nearest valid: search.trials)"),
        ("sapce", "(nearest valid: space)"),
        ("space.zero_stages", "space.zero_stages: unknown key"),
    ],
)
def test_an_unknown_key_is_named_with_its_path(tmp_path: Path, key: str, message: str) -> None:
    assert message in _refusal(tmp_path, **{key: 1})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.hidden", "x", "model.hidden: 'x': 'x' is not a number"),
        ("model.heads", 3, "model: hidden 32 must be a multiple of heads 3"),
        ("model.kind", "gtp", "model.kind: 'gtp': must be one of 'gpt', 'hf'"),
        ("model.kind", None, "model.kind: is required"),
        ("environment", {"NCCL_DEBUG": None}, "environment.NCCL_DEBUG: None"),
        ("environment", {"NCCL_DEBUG": True}, "environment.NCCL_DEBUG: True"),
        ("model", {"kind": "trainer"}, "model.trainer: is required"),
        ("model", {"kind": "loop", "loop": "mine"}, "model.loop: 'mine': "),
        ("model", {"kind": "hf"}, "an hf model needs either config (a config.json) or config_class"),
        ("model", {"kind": "hf", "name": "gpt2"}, "model.name: unknown key; known here: kind, config, config_class"),
        ("model", {"kind": "hf", "config": "none.json"}, "none.json': cannot be read: No such file"),
        (
            "model",
            {"kind": "hf", "config_class": "GPT2Config", "lora": {"rank": 8}},
            "model.lora.rank: unknown key; known here: r, alpha, target_modules, dropout",
        ),
        ("model", {"kind": "factory", "factory": "package.make"}, "model.factory: 'package.make': "),
        ("model", {"kind": "factory", "factory": "a:b", "python_path": "nowhere"}, "nowhere': is no folder"),
        ("model.positions", 8, "model.positions 8 is below sequence_length 16"),
        ("model", None, "model: is required"),
        ("global_batch_size", "foo", "global_batch_size: 'foo': 'foo' is not a number, or: Input should be 'free'"),
        ("global_batch_size", 2.5, "global_batch_size: 2.5: 2.5 is not a whole number"),
        ("memory_budget", "foo", "memory_budget: 'foo': 'foo' is not a size; write for example 1.5GiB"),
        ("memory_budget", "foo", "or: Input should be 'auto'"),
        ("space.zero_stage", [0, 4], "stages are 0, 1, 2, 3 (nearest valid: 3)"),
        ("space.zero_stage", ["a"], "space.zero_stage.0: 'a': 'a' is not a number"),
        ("space.micro_batch_size_per_gpu", [], "space.micro_batch_size_per_gpu: []: "),
        ("space.gradient_accumulation_steps", [2], "gradient_accumulation_steps needs global_batch_size: free"),
        (
            "space.deepspeed",
            {"zero_optimization.stage": [1]},
            "space.deepspeed: zero_optimization.stage is filled from",
        ),
        ("space.deepspeed", {"a.b": []}, "space.deepspeed.a.b: []: "),
        ("search.method", "gird", "search.method: 'gird': Input should be 'guided', 'grid', 'random' or 'optuna'"),
        ("data", {"kind": "text"}, "data: text data needs a path"),
        ("launcher", "in_process", "workers.count must be 1"),
        ("deepspeed", [1], "deepspeed: [1]: "),
        ("deepspeed", "missing.json", "cannot be read: No such file"),
    ],
)
def test_a_wrong_value_is_named_with_path_and_rule(tmp_path: Path, key: str, value: Any, message: str) -> None:
    refusal = _refusal(tmp_path, **{key: value})
    assert message in refusal
    assert "function-" not in refusal and "constrained" not in refusal and ".gpt" not in refusal


def test_what_is_no_sweep_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    for content, message in (
        (b"a: [", "not valid YAML"),
        (b"\xff\xfe\x00", "is no text file"),
        (b"- 1", "a sweep file is a mapping of sections"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            load_sweep(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml.*No such file"):
        load_sweep(tmp_path / "nowhere.yaml")


def test_the_hash_follows_meaning_and_not_comments(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    before = load_sweep(path).sweep_sha256
    path.write_text("# a comment\n" + path.read_text())
    assert load_sweep(path).sweep_sha256 == before
    assert load_sweep(write_sweep(tmp_path, sequence_length=8)).sweep_sha256 != before


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e8", 500_000_000),
        ("1.5e3", 1500),
        ("1e-3", 1e-3),
        ("-2E2", -200),
        ("1_0e1", 100),
        ("5.0", 5.0),
        ("'5e8'", "5e8"),
        ("e8", "e8"),
    ],
)
def test_yaml_numbers(text: str, value: object) -> None:
    read = load_yaml(text)
    assert read == value and type(read) is type(value)


def test_json_numbers() -> None:
    read = load_json('{"bucket": 5e8, "lr": 1e-3, "betas": [0.9, 1.0]}')
    assert read == {"bucket": 500_000_000, "lr": 1e-3, "betas": [0.9, 1.0]}
    assert type(read["bucket"]) is int and type(read["betas"][1]) is float
