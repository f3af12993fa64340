"""Writes the winner as files: the DeepSpeed config, its figures and provenance, its environment."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from raysweep.budget import CONFIRM_ROUNDS
from raysweep.candidate import Candidate
from raysweep.results.paths import ResultsPaths
from raysweep.results.records import TrialRecord
from raysweep.results.select import Selection
from raysweep.results.store import open_filesystem, write_whole
from raysweep.serde import from_dict, sha256_of, to_dict
from raysweep.trial import SweepStart


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCandidate:
    """The winner and all that its files tell."""

    record: TrialRecord
    selection: Selection
    sweep: SweepStart
    ds_config: Mapping[str, Any]
    """As rendered for the workers."""
    ds_config_sha256: str
    """As recorded when it was measured."""
    candidate: Candidate
    exported_at: str
    """UTC, ISO 8601."""

    def __post_init__(self) -> None:
        assert self.selection.winner == self.record.candidate_id, "the winner's own record is exported"
        assert sha256_of(dict(self.ds_config)) == self.ds_config_sha256, "what is exported is what was measured"


def write_selection(root: str, selection: Selection) -> None:
    """Write `selection.json`."""
    text = json.dumps(to_dict(selection), indent=2) + "\n"
    filesystem, path = open_filesystem(str(ResultsPaths(root).selection))
    write_whole(filesystem, path, text.encode())


def read_selection(root: str) -> Selection | None:
    """The selection of a results folder; None where none has been written."""
    path = ResultsPaths(root).selection
    return from_dict(Selection, json.loads(path.read_text())) if path.exists() else None


def write_best(root: str, best: BestCandidate) -> Path:
    """Write the folder `best/` and return it: as a whole under another name, then put in place.

    A best that is not confirmed has the file UNCONFIRMED beside the others.
    """
    paths = ResultsPaths(root)
    beside, former = _neighbours(paths)
    _clear(beside, former)
    beside.mkdir(parents=True)
    for target, text in _texts(paths, best).items():
        (beside / target.name).write_text(text)
    if paths.best.exists():
        paths.best.rename(former)
    beside.rename(paths.best)
    _clear(former)
    return paths.best


def remove_best(root: str) -> None:
    """Remove `best/`, so that a sweep without a winner does not leave an older one's files as if they were its own."""
    paths = ResultsPaths(root)
    _clear(*_neighbours(paths), paths.best)


def _texts(paths: ResultsPaths, best: BestCandidate) -> dict[Path, str]:
    texts = {
        paths.ds_config: json.dumps(best.ds_config, indent=2) + "\n",
        paths.best_yaml: yaml.safe_dump(_summary(best), sort_keys=False, allow_unicode=True),
        paths.train_script: files("raysweep.launch").joinpath("train_ray.py").read_text(),
        paths.environment_script: _environment_script(best.sweep.workload.environment),
    }
    if not best.selection.confirmed:
        texts[paths.unconfirmed_marker] = (
            f"{best.record.candidate_id} is the best of the search and has not been confirmed: "
            "its figure is that of a single launch.\n"
        )
    return texts


def _summary(best: BestCandidate) -> dict[str, Any]:
    record, selection = best.record, best.selection
    return {
        "candidate": {
            "candidate_id": record.candidate_id,
            "zero_stage": record.zero_stage,
            "activation_checkpoint_interval": record.activation_checkpoint_interval,
            "micro_batch_size_per_gpu": record.micro_batch_size_per_gpu,
            "gradient_accumulation_steps": record.gradient_accumulation_steps,
            "attn_implementation": best.candidate.attn_implementation,
            "torch_compile": best.candidate.torch_compile,
            "world_size": record.world_size,
            "global_batch_size": record.global_batch_size,
            "deepspeed": dict(best.candidate.deepspeed),
        },
        "figures": {
            "confirmed": selection.confirmed,
            "how": _how_confirmed(selection),
            "samples_per_s": selection.samples_per_s,
            "samples_per_s_low": selection.samples_per_s_low,
            "samples_per_s_high": selection.samples_per_s_high,
            "search_samples_per_s": record.samples_per_s,
            "peak_memory_bytes": record.peak_memory_bytes,
            "memory_budget_bytes": record.memory_budget_bytes,
            "runner_up": selection.runner_up,
            "runner_up_reason": selection.runner_up_reason,
        },
        "provenance": {
            "ds_config_sha256": best.ds_config_sha256,
            "sweep_sha256": best.sweep.sweep_sha256,
            "workload_sha256": best.sweep.workload.workload_sha256(),
            "measured_at": record.started_at,
            "exported_at": best.exported_at,
            "versions": dict(best.sweep.versions),
        },
        "workload": best.sweep.workload.of(best.candidate).described(),
        "resources_per_worker": dict(best.sweep.resources_per_worker),
    }


def _how_confirmed(selection: Selection) -> str:
    if not selection.confirmed:
        return "not confirmed: one launch of the search"
    return f"at least {CONFIRM_ROUNDS} fresh worker groups, each of which measured all finalists; 95 % interval"


def _environment_script(environment: Mapping[str, str]) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    return "\n".join(["# The environment in which the winner was measured.", *lines]) + "\n"


def _neighbours(paths: ResultsPaths) -> tuple[Path, Path]:
    return paths.best.with_name("best.new"), paths.best.with_name("best.former")


def _clear(*folders: Path) -> None:
    for folder in folders:
        if os.path.lexists(folder):
            shutil.rmtree(folder)
