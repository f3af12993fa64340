"""The documents say what the code has: the map, links, keys, columns, statuses, exit codes, printed examples."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from source_tree import PACKAGE, ROOT, module_paths, parsed
from typer.testing import CliRunner
from write_map import map_lines
from write_reference import pages

from raysweep import errors
from raysweep.cli.main import app
from raysweep.cli.run import UNCONFIRMED
from raysweep.cli.verbs import INTERRUPTED
from raysweep.model_schema import MODEL_SECTIONS, FactoryModel, GptModel, HfModel, LoopModel, TrainerModel
from raysweep.results.schema import measurements_schema, trials_schema
from raysweep.section import Section
from raysweep.sweep_file import load_sweep
from raysweep.sweep_schema import SweepFile
from raysweep.trial import FailureKind, MemoryKind, Phase, SkipRule, TrialStatus
from raysweep.yaml_numbers import load_yaml

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "cluster").rglob("*.md")],
)


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _rows(text: str) -> list[list[str]]:
    """Cells of the rows of all tables, without heads and rules; a row's first cell is in backticks."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")
    ]


def _section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_the_map_is_the_tree() -> None:
    assert [line for line in _section(_text("docs/map.md"), "Modules").splitlines() if line] == map_lines()


def test_the_readme_maps_every_folder() -> None:
    folders = {
        f"- `{path.parent.relative_to(ROOT)}/`: {(ast.get_docstring(parsed(path)) or '').splitlines()[0]}"
        for path in module_paths().values()
        if path.name == "__init__.py" and path.parent != ROOT / PACKAGE
    }
    assert folders <= set(_section(_text("README.md"), "The map").splitlines())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    named = re.findall(rf"`((?:{PACKAGE}|search_spaces|tests|benchmarks)/[\w./]+)`", document.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def _fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        inner = GptModel if name == "model" else _inner_section(field.annotation)
        if inner is not None:
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _inner_section(annotation: Any) -> type[BaseModel] | None:
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, Section)), None)


def test_every_key_of_the_other_models_is_documented_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1] for row in _rows(_text("docs/models.md"))}
    fields = [each for kind in (HfModel, FactoryModel, TrainerModel, LoopModel) for each in _fields(kind, "model.")]
    assert documented == {name: _default(field) for name, field in fields if name != "model.kind"}


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return {"None": "none", "True": "true", "False": "false"}.get(str(value), str(value))


def test_every_key_of_a_sweep_file_is_documented_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1] for row in _rows(_text("docs/sweep-file.md"))}
    assert documented == {name: _default(field) for name, field in _fields(SweepFile)}


def _documented_defaults(document: str) -> list[tuple[str, str]]:
    rows = [(row[0].strip("`"), row[1]) for row in _rows(_text(document))]
    return [(key, default) for key, default in rows if default != "required"]


SWEEP = {
    "name": "defaults",
    "model": {"kind": "gpt", "blocks": 2, "hidden": 32, "heads": 2},
    "sequence_length": 16,
    "workers": {"count": 2},
    "global_batch_size": 4,
    "space": {"zero_stage": [1], "micro_batch_size_per_gpu": [1, 2]},
}
MODELS = {
    "gpt": {"kind": "gpt", "blocks": 2, "hidden": 32, "heads": 2},
    "hf": {"kind": "hf", "config_class": "GPT2Config"},
    "factory": {"kind": "factory", "factory": "package.module:function"},
    "trainer": {"kind": "trainer", "trainer": "package.module:function"},
    "loop": {"kind": "loop", "loop": "package.module:function"},
}


@pytest.mark.parametrize(("key", "default"), _documented_defaults("docs/sweep-file.md"))
def test_a_key_of_a_sweep_file_takes_its_documented_default(tmp_path: Path, key: str, default: str) -> None:
    _load_with(tmp_path, SWEEP, key, default)


@pytest.mark.parametrize(("key", "default"), _documented_defaults("docs/models.md"))
def test_a_key_of_the_other_models_takes_its_documented_default(tmp_path: Path, key: str, default: str) -> None:
    kinds = [kind for kind, section in MODEL_SECTIONS.items() if key.split(".")[1] in section.model_fields]
    assert kinds
    for kind in kinds:
        _load_with(tmp_path, {**SWEEP, "model": MODELS[kind]}, key, default)


def _load_with(folder: Path, sweep: dict[str, Any], key: str, default: str) -> None:
    plain = json.loads(json.dumps(sweep))
    section = plain
    *sections, name = key.split(".")
    for each in sections:
        section = section.setdefault(each, {})
    if name in section:
        return  # without a value of its own the model would be none
    section[name] = None if default == "none" else yaml.safe_load(default)
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(plain))
    load_sweep(path)


@pytest.mark.parametrize("schema", [trials_schema(), measurements_schema()], ids=["trials", "measurements"])
def test_every_column_is_documented_in_order(schema: pa.Schema) -> None:
    heading = "trials.parquet" if "zero_stage" in schema.names else "measurements.parquet"
    rows = _rows(_section(_text("docs/results.md"), heading))
    assert [(row[0].strip("`"), row[1]) for row in rows] == [(column.name, str(column.type)) for column in schema]


@pytest.mark.parametrize("kind", [TrialStatus, SkipRule, FailureKind, MemoryKind, Phase])
def test_every_status_rule_and_kind_is_documented(kind: type[StrEnum]) -> None:
    text = _text("docs/results.md")
    assert [member.value for member in kind if f"`{member.value}`" not in text] == []


def test_every_exit_code_is_documented() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.RaysweepError)}
    table = _section(_text("docs/results.md"), "Exit codes")
    assert {int(code) for code in re.findall(r"^\| (\d+) ", table, re.MULTILINE)} == {
        0,
        UNCONFIRMED,
        INTERRUPTED,
    } | codes


def test_printed_examples_are_what_is_printed() -> None:
    examples = re.findall(r"```console\n\$ raysweep ([^\n]+)\n(.*?)```", _text("README.md"), re.DOTALL)
    assert examples
    for command, shown in examples:
        printed = CliRunner().invoke(app, command.split()).output.splitlines()
        assert [line for line in shown.splitlines() if line not in (*printed, "...")] == []


def test_the_sweep_file_of_the_readme_loads() -> None:

    (written,) = re.findall(r"```yaml\n(.*?)```", _text("README.md"), re.DOTALL)
    assert SweepFile.model_validate(load_yaml(written)).search.trials == 16


def test_the_errors_of_the_memory_prediction_are_those_of_the_benchmark() -> None:
    path = ROOT / "benchmarks" / "closed_form_error.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    table = _section(_text("docs/memory.md"), "How good it is")
    for name, summary in benchmark.errors_by_group().items():
        assert "| " + " | ".join(map(str, (name, *summary.values()))) + " |" in table


@pytest.mark.parametrize("name", pages())
def test_the_reference_is_what_the_code_says(name: str) -> None:
    assert _text(f"docs/reference/{name}") == pages()[name], "run `make format`"
