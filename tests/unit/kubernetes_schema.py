"""Judges manifests by the schema of a custom resource, as a Kubernetes API server does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema


def validate(manifest: dict[str, Any], schema: Path) -> None:
    """Hold a manifest against an OpenAPI v3 schema that is kept as JSON, packed by gzip.

    Raises:
        jsonschema.ValidationError: for the first thing that breaks it.
    """
    jsonschema.Draft202012Validator(_strict(json.loads(gzip.decompress(schema.read_bytes())))).validate(manifest)


def _strict(schema: Any) -> Any:
    """Kubernetes' dialect as JSON Schema; a field that the schema does not have is refused, as `--validate=strict`."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if strict.pop("x-kubernetes-int-or-string", False):
        strict.pop("type", None)
        strict["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    closed = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if closed and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict["additionalProperties"] = strict["properties"] == {"metadata": {}} or False
    return strict
