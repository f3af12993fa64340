"""Reads a sweep file into our nouns; every error names the key, the value, the rule and the nearest valid choice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from raysweep.ds_config import prepare_base
from raysweep.errors import ConfigError, nearest_name
from raysweep.model_schema import MODEL_SECTIONS, FactoryModel, GptModel, HfModel, LoopModel, TrainerModel
from raysweep.section import Section
from raysweep.serde import sha256_of
from raysweep.space import SearchSpace
from raysweep.submit_schema import SubmitSection
from raysweep.sweep_schema import SweepFile
from raysweep.workload import ModelShape, Workload, gpt_shape
from raysweep.yaml_numbers import load_json, load_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep file, read and checked."""

    file: SweepFile
    path: Path
    text: str
    """The file as written, kept for the record."""
    workload: Workload
    space: SearchSpace
    base_ds_config: Mapping[str, Any]
    """The user's DeepSpeed config less the keys that raysweep fills for each candidate."""
    notes: tuple[str, ...]
    """What was changed or filled in on reading, a sentence each."""

    @property
    def results(self) -> str:
        """Results folder or URI."""
        return self.file.results or f"results/{self.file.name}"

    @property
    def memory_budget_bytes(self) -> int | None:
        """The budget where the file gives one; None for `auto`."""
        return None if self.file.memory_budget == "auto" else self.file.memory_budget

    @property
    def sweep_sha256(self) -> str:
        """Hash of the file's meaning: comments and order do not count, nor where it is sent, nor who is told of it."""
        return sha256_of(self.file.model_dump(mode="json", exclude={"submit", "trackers"}))


def load_sweep(
    path: str | Path,
    *,
    search: Mapping[str, Any] | None = None,
    results: str | None = None,
    submit: Mapping[str, Mapping[str, Any]] | None = None,
    memory_model: str | None = None,
) -> Sweep:
    """Read and check a sweep file.

    Args:
        path: the file.
        search: values of its `search` section that replace what is written there.
        results: a results folder or URI in place of the file's.
        submit: place -> values of that part of its `submit` section that replace what is written there.
        memory_model: how memory is predicted, in place of the file's.

    Raises:
        ConfigError: when the file is missing, is no YAML, or breaks a rule of the schema.
    """
    path = Path(path)
    text = _read_text(path, key="sweep file")
    try:
        plain = load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(key=str(path), rule=f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(plain, dict):
        raise ConfigError(
            key=str(path), rule="a sweep file is a mapping of sections (name, model, workers, space, ...)"
        )
    if search:
        plain = {**plain, "search": {**(plain.get("search") or {}), **search}}
    given = {"results": results, "memory_model": memory_model}
    plain = {**plain, **{key: value for key, value in given.items() if value}}
    if submit:
        plain = {**plain, "submit": _replaced(plain.get("submit"), submit)}
    try:
        file = SweepFile.model_validate(plain)
    except ValidationError as error:
        raise _teach(error, plain) from None
    base, notes = prepare_base(_base_config(file, path), precision=file.precision, optimizer=_optimizer(file))
    workload = _workload(file, path.parent)
    space = _space(file)
    space.check(global_batch_size=workload.global_batch_size, world_size=workload.world_size)
    return Sweep(
        file=file, path=path, text=text, workload=workload, space=space, base_ds_config=base, notes=tuple(notes)
    )


def submit_section(given: Mapping[str, Mapping[str, Any]]) -> SubmitSection:
    """A `submit` section without a sweep file: place -> its values.

    Raises:
        ConfigError: when it breaks a rule of the schema.
    """
    try:
        return _SubmitOnly.model_validate({"submit": given}).submit
    except ValidationError as error:
        raise _teach(error, {"submit": given}) from None


class _SubmitOnly(Section):
    submit: SubmitSection


def _replaced(section: Any, changes: Mapping[str, Mapping[str, Any]]) -> Any:
    """The section with single values of its parts changed; what is no section is left for the schema to refuse."""
    if not isinstance(section or {}, dict):
        return section
    section = dict(section or {})
    for part, values in changes.items():
        if isinstance(section.get(part) or {}, dict):
            section[part] = {**(section.get(part) or {}), **values}
    return section


def _read_text(path: Path, *, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(key=key, value=str(path), rule=f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(key=key, value=str(path), rule="is no text file (UTF-8)") from None


def _base_config(file: SweepFile, path: Path) -> Mapping[str, Any]:
    if not isinstance(file.deepspeed, str):
        return file.deepspeed
    return _read_object(path.parent / file.deepspeed, key="deepspeed")


def _read_object(path: Path, *, key: str) -> dict[str, Any]:
    try:
        plain = load_json(_read_text(path, key=key))
    except json.JSONDecodeError as error:
        raise ConfigError(key=key, value=str(path), rule=f"not valid JSON: {error}") from None
    if not isinstance(plain, dict):
        raise ConfigError(key=key, value=str(path), rule="a config is a JSON object")
    return plain


def _optimizer(file: SweepFile) -> Mapping[str, Any] | None:
    return None if file.optimizer is None else file.optimizer.model_dump()


def _workload(file: SweepFile, folder: Path) -> Workload:
    return Workload(
        model=_model(file, folder),
        shape=_shape(file.model, file.sequence_length) if isinstance(file.model, GptModel) else None,
        data=file.data.model_dump(),
        sequence_length=file.sequence_length,
        precision=file.precision,
        optimizer=_optimizer(file) or {},
        world_size=file.workers.count,
        device="cuda" if file.workers.resources_per_worker.get("GPU") else "cpu",
        global_batch_size=None if file.global_batch_size == "free" else file.global_batch_size,
        seed=file.seed,
        environment=file.environment,
    )


def _model(file: SweepFile, folder: Path) -> Mapping[str, Any]:
    """The model section as a worker on any node needs it: a config is read here, a folder is named in full."""
    model = file.model.model_dump()
    if isinstance(file.model, GptModel):
        model["positions"] = file.model.positions or file.sequence_length
    if isinstance(file.model, HfModel) and file.model.config is not None:
        path = folder / file.model.config
        model["config"] = _read_object(path / "config.json" if path.is_dir() else path, key="model.config")
    if isinstance(file.model, FactoryModel | TrainerModel | LoopModel) and file.model.python_path is not None:
        python_path = (folder / file.model.python_path).resolve()
        if not python_path.is_dir():
            raise ConfigError(key="model.python_path", value=str(python_path), rule="is no folder")
        model["python_path"] = str(python_path)
    return model


def _shape(model: GptModel, sequence_length: int) -> ModelShape:
    return gpt_shape(
        blocks=model.blocks,
        hidden=model.hidden,
        vocab_size=model.vocab_size,
        positions=model.positions or sequence_length,
        tied=model.tied,
    )


def _space(file: SweepFile) -> SearchSpace:
    # A choice that was written twice is one choice: every candidate has one row.
    return SearchSpace(
        zero_stage=tuple(dict.fromkeys(file.space.zero_stage)),
        activation_checkpoint_interval=tuple(dict.fromkeys(file.space.activation_checkpoint_interval)),
        micro_batch_size_per_gpu=tuple(dict.fromkeys(file.space.micro_batch_size_per_gpu)),
        gradient_accumulation_steps=tuple(dict.fromkeys(file.space.gradient_accumulation_steps)),
        offload_optimizer=tuple(dict.fromkeys(file.space.offload_optimizer)),
        zero_hpz_partition_size=tuple(dict.fromkeys(file.space.zero_hpz_partition_size)),
        attn_implementation=tuple(dict.fromkeys(file.space.attn_implementation or ())) or (None,),
        torch_compile=tuple(dict.fromkeys(file.space.torch_compile)),
        world_size=tuple(dict.fromkeys(file.space.world_size or ())) or (None,),
        deepspeed={key: tuple(values) for key, values in file.space.deepspeed.items()},
        constraints=tuple(file.space.constraints),
    )


def _teach(error: ValidationError, plain: Mapping[str, Any]) -> ConfigError:
    """The first problem that pydantic found, in our words; an unknown key goes first, because it may explain others."""
    problems = error.errors(include_url=False)
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    path = _written_path(first["loc"], plain)
    key = ".".join(path) or "sweep file"
    if first["type"] == "extra_forbidden":
        known = tuple(_fields_at(path[:-1], plain))
        near = nearest_name(path[-1], known)
        nearest = ".".join([*path[:-1], near]) if near else None
        return ConfigError(key=key, rule=f"unknown key; known here: {', '.join(known)}", nearest=nearest)
    if first["type"] in ("missing", "union_tag_not_found"):
        lacking = "kind" if first["type"] == "union_tag_not_found" else str(first["loc"][-1])
        return ConfigError(key=".".join([*path, lacking]), rule="is required")
    if first["type"] == "union_tag_invalid":
        tags = first["ctx"]
        return ConfigError(key=f"{key}.kind", value=tags["tag"], rule=f"must be one of {tags['expected_tags']}")
    # A field that takes a number or a word has a problem with each.
    alike = [problem["msg"] for problem in problems if _written_path(problem["loc"], plain) == path]
    rule = ", or: ".join(message.removeprefix("Value error, ") for message in alike)
    value = {} if isinstance(first["input"], dict) else {"value": first["input"]}
    return ConfigError(key=key, rule=rule, **value)


def _written_path(location: tuple[int | str, ...], plain: Any) -> list[str]:
    """Pydantic's path less what the user never wrote: it puts the branch of a union among the keys."""
    path = []
    for part in location:
        if part in plain if isinstance(plain, dict) else isinstance(plain, list) and isinstance(part, int):
            path.append(str(part))
            plain = plain[part]
    return path


def _fields_at(path: list[str], plain: Mapping[str, Any]) -> Iterator[str]:
    """Names of the fields of the section at `path`."""
    section: Any = SweepFile
    for part in path:
        annotation = section.model_fields[part].annotation
        inner = MODEL_SECTIONS[plain["model"]["kind"]] if part == "model" else annotation
        choices = (inner, *get_args(inner))
        section = next((kind for kind in choices if isinstance(kind, type) and issubclass(kind, BaseModel)), section)
    yield from section.model_fields
