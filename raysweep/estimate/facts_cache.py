"""Keeps a model's facts on disk under a hash of all that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysweep.model_facts import ModelFacts
from raysweep.model_schema import FUNCTION_KINDS
from raysweep.serde import from_dict, sha256_of, to_dict
from raysweep.workload import Workload

PACKAGES = ("torch", "transformers", "peft", "raysweep")
"""Packages whose version may change what a section builds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsCache:
    """The place of one model's facts. A cache that cannot be read or written costs time and nothing else."""

    file: Path

    @classmethod
    def of(cls, section: Mapping[str, Any], *, weighed: Workload | None = None) -> FactsCache:
        """The place for a model section: a hash over it, its factory's source, and versions.

        A section that names a config file holds its content already. Activations that are `weighed` with it depend on
        precision and sequence length, too.
        """
        key = {
            "section": dict(section),
            "sources": [sha256_of_file(file) for file in factory_sources(section)],
            "weighed": None if weighed is None else [weighed.precision, weighed.sequence_length],
            "versions": {name: package_version(name) for name in PACKAGES},
        }
        return cls(file=cache_folder() / "model_facts" / f"{sha256_of(key)}.json")

    def read(self) -> ModelFacts | None:
        """The facts, or None where there are none, or none that this version understands."""
        try:
            return from_dict(ModelFacts, json.loads(self.file.read_text(encoding="utf-8")))
        except (OSError, ValueError, ValidationError):
            return None

    def write(self, facts: ModelFacts) -> None:
        """Keep the facts; written under another name first, so that a reader never sees half of them."""
        write_cached(self.file, to_dict(facts))


def cache_folder() -> Path:
    """Where what took long to find out is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raysweep"


def write_cached(file: Path, value: Mapping[str, Any]) -> None:
    """Write a value as JSON under another name, then rename it; a cache that cannot be written is none."""
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(value, indent=2), encoding="utf-8")
        partial.replace(file)
    except OSError:
        with suppress(OSError):
            partial.unlink()


def package_version(package: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def sha256_of_file(file: Path) -> str:
    """Of its bytes, in hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def factory_sources(section: Mapping[str, Any]) -> list[Path]:
    """Every Python file of the factory's package, or beside its module where it has no package.

    The module is found as an import would find it, and not imported.
    """
    if section["kind"] not in FUNCTION_KINDS:
        return []
    top = section[section["kind"]].partition(":")[0].partition(".")[0]
    first = str(section.get("python_path") or Path.cwd())
    spec = PathFinder.find_spec(top, [first]) or PathFinder.find_spec(top)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return sorted(file for place in spec.submodule_search_locations for file in Path(place).rglob("*.py"))
    return sorted(Path(spec.origin).parent.glob("*.py")) if spec.has_location and spec.origin else []
