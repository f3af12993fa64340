"""Facts are built once, kept under a hash of what they depend on, and put into the sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_profile, make_workload, write_sweep
from test_model_facts import LLAMA_7B

from raysweep.errors import ConfigError
from raysweep.estimate import facts as facts_module
from raysweep.estimate import facts_cache
from raysweep.estimate.facts import facts_of, with_facts
from raysweep.estimate.facts_cache import FactsCache
from raysweep.model_facts import ModelFacts
from raysweep.model_schema import FactoryModel, HfModel
from raysweep.plan import make_plan
from raysweep.serde import from_dict, to_dict
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.workload import Workload

HF = HfModel(kind="hf", config_class="LlamaConfig").model_dump()


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "raysweep" / "model_facts"


def sweep_with(folder: Path, facts: ModelFacts | None, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(facts_module, "facts_of", lambda section, note, workload: facts)
    return with_facts(load_sweep(write_sweep(folder, model={"kind": "hf", "config_class": "LlamaConfig"})), note=print)


def factory_in(folder: Path, source: str) -> dict[str, Any]:
    package = folder / "mine"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("raise RuntimeError('the driver must not import it')")
    (package / "model.py").write_text(source)
    return FactoryModel(kind="factory", factory="mine.model:make", python_path=str(folder)).model_dump()


def test_what_was_written_is_read(cache_home: Path) -> None:
    cache = FactsCache.of(HF)
    assert cache.read() is None
    cache.write(LLAMA_7B)
    assert cache.read() == LLAMA_7B
    assert [file.suffix for file in cache_home.iterdir()] == [".json"]


@pytest.mark.parametrize("content", ["", "{", '{"parameters": 1}', "[]", "\xff"])
def test_a_damaged_file_is_no_file(content: str) -> None:
    cache = FactsCache.of(HF)
    cache.write(LLAMA_7B)
    cache.file.write_bytes(content.encode("latin-1"))
    assert cache.read() is None


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    FactsCache.of(HF).write(LLAMA_7B)
    assert FactsCache.of(HF).read() is None


def test_section_source_and_versions_each_have_a_place_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = factory_in(tmp_path, "one = 1")
    places = [FactsCache.of(section).file, FactsCache.of(section | {"kwargs": {"depth": 2}}).file]
    places.append(FactsCache.of(factory_in(tmp_path, "one = 2")).file)
    (tmp_path / "mine" / "blocks.py").write_text("")
    places.append(FactsCache.of(section).file)
    monkeypatch.setattr(facts_cache, "package_version", lambda package: "9")
    places.append(FactsCache.of(section).file)
    assert len(set(places)) == 5


def test_the_model_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(facts_module, "_build", lambda section, workload: built.append("built") or LLAMA_7B)
    assert [facts_of(HF, note=said.append) for _ in range(3)] == [LLAMA_7B] * 3
    assert built == ["built"]
    assert said == ["building the model once on the meta device to count its parameters ..."]


def test_without_torch_the_parameters_stay_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "find_spec", lambda name: None)
    plan = make_plan(
        with_facts(load_sweep(write_sweep(tmp_path, model={"kind": "hf", "config_class": "LlamaConfig"})), note=print)
    )
    assert "parameters unknown: install torch or give --params; nothing is pruned" in plan.notes
    assert len(plan.admitted) == 16 and plan.recommendation is None


def test_activations_are_measured_with_each_attention_on_the_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, other = make_profile(), replace(make_profile(), buffer_bytes=8)
    facts = {
        None: replace(LLAMA_7B, activations=profile),
        "eager": replace(LLAMA_7B, activations=other),
        "flash_attention_2": replace(LLAMA_7B, unmeasured="no such package"),
    }
    asked: list[Any] = []

    def facts_of_section(section: Any, note: Any, workload: Any) -> ModelFacts:
        assert workload.model == section
        asked.append(section["attn_implementation"])
        return facts[asked[-1]]

    monkeypatch.setattr(facts_module, "facts_of", facts_of_section)
    model = {"kind": "hf", "config_class": "LlamaConfig"}
    axis = {"space.attn_implementation": ["eager", "flash_attention_2", "eager"]}
    sweep = with_facts(load_sweep(write_sweep(tmp_path, model=model, **axis)), note=print)
    assert asked == [None, "eager", "flash_attention_2"]
    shapes = [sweep.workload.of(make_candidate(attn_implementation=each)).shape for each in facts]
    assert [shape.activations for shape in shapes if shape] == [profile, other, None]
    assert "flash_attention_2 attention: activations are taken to be those of the built-in GPT" in sweep.notes[-1]
    assert "(no such package)" in sweep.notes[-1]
    plain = {name: value for name, value in sweep.workload.described()["shape"].items() if "activations" in name}
    assert plain == {} and from_dict(Workload, to_dict(sweep.workload)) == sweep.workload


def test_the_built_in_model_needs_no_facts(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    assert with_facts(sweep, note=pytest.fail) is sweep


def test_a_sweep_gets_the_shape_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_with(tmp_path, LLAMA_7B, monkeypatch)
    assert sweep.workload.shape is not None and sweep.workload.shape.parameters == 6_738_415_616
    assert "model: 6.74e9 parameters, 32 blocks (model.layers)" in sweep.notes
    assert set(sweep.space.activation_checkpoint_interval) == {0, 2}


def test_without_blocks_only_candidates_without_checkpointing_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = replace(LLAMA_7B, block_lists=(), hidden=None, parameters=10**5, trainable_parameters=10**5)
    sweep = sweep_with(tmp_path, facts, monkeypatch)
    plan = make_plan(sweep)
    assert {row.candidate.activation_checkpoint_interval for row in plan.rows} == {0} and len(plan.rows) == 8
    assert any("activation checkpoint axis disabled: no blocks found" in note for note in plan.notes)
    assert any("activations unknown" in note for note in plan.notes)
    assert plan.recommendation is None


def test_a_model_that_cannot_be_built_is_told_in_its_own_words() -> None:
    section = FactoryModel(kind="factory", factory="nowhere.at_all:make").model_dump()
    with pytest.raises(ConfigError) as caught:
        facts_of(section, note=print)
    assert caught.value.exit_code == 2 and "No module named 'nowhere'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("program", "code"), [("false", 1), ("true", 0)])
def test_a_process_that_ends_without_an_answer_is_told(
    monkeypatch: pytest.MonkeyPatch, program: str, code: int
) -> None:
    monkeypatch.setattr("sys.executable", f"/bin/{program}")
    with pytest.raises(ConfigError, match=f"model: 'hf': cannot be built: exit code {code}"):
        facts_of(HF, note=print)


@pytest.mark.parametrize(
    ("ending", "reason"), [("exit 9", "the process ended with exit code 9"), ("sleep 60", "not done within 2 s")]
)
def test_a_measurement_that_does_not_end_leaves_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, reason: str
) -> None:
    (tmp_path / "facts.json").write_text(json.dumps({"facts": to_dict(LLAMA_7B)}))
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/facts.json; echo; echo measuring; exec >&- ; {ending}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr(facts_module, "BUILD_TIMEOUT_S", 2)
    assert facts_of(HF, note=print, workload=make_workload()) == replace(LLAMA_7B, unmeasured=reason)


def test_activations_that_were_not_measured_are_those_of_the_built_in_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_with(tmp_path, replace(LLAMA_7B, unmeasured="RuntimeError: no such kernel"), monkeypatch)
    assert sweep.notes[-1] == (
        "activations are taken to be those of the built-in GPT, with a wide band: they were not measured "
        "(RuntimeError: no such kernel)"
    )


def test_what_was_weighed_has_a_place_for_each_precision_and_length() -> None:
    loads = [make_workload(), make_workload(precision="fp32"), make_workload(sequence_length=8), None]
    assert len({FactsCache.of(HF, weighed=load).file for load in loads}) == 4
    # Neither the workers nor the batch change what a pass holds.
    assert FactsCache.of(HF, weighed=make_workload(world_size=8)).file == FactsCache.of(HF, weighed=loads[0]).file
