"""Keeps traces on disk under a hash of all that they depend on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysweep.estimate.facts_cache import cache_folder, factory_sources, package_version, sha256_of_file, write_cached
from raysweep.serde import from_dict, sha256_of, to_dict
from raysweep.trace import RankTrace, TraceJob

PACKAGES = ("torch", "deepspeed", "transformers", "peft", "raysweep")
TRACE_FORMAT = 2
"""To be raised when a change of the trace changes what it finds."""


def environment_key() -> dict[str, Any]:
    """Versions that a trace depends on."""
    return {"format": TRACE_FORMAT, "versions": {name: package_version(name) for name in PACKAGES}}


def trace_file(job: TraceJob) -> Path:
    """The place of a job's trace: a hash over its request, its factory's source, and versions."""
    key = {
        "job": to_dict(job),
        "sources": [sha256_of_file(file) for file in factory_sources(job.request.workload.model)],
        **environment_key(),
    }
    return cache_folder() / "traces" / f"{sha256_of(key)}.json"


def read_trace(file: Path) -> RankTrace | None:
    """The trace, or None where there is none, or none that this version understands."""
    try:
        return from_dict(RankTrace, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        return None


def write_trace(file: Path, trace: RankTrace) -> None:
    """Keep a trace; what could not be traced is asked again next time."""
    if not trace.error:
        write_cached(file, to_dict(trace))
