"""Turns our frozen dataclasses into plain JSON values and back: the only form in which they cross a process."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_dict(value: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values."""
    plain: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")  # type: ignore[arg-type]
    return plain


def from_dict(kind: type[T], plain: dict[str, Any]) -> T:
    """The dataclass that `to_dict` was given.

    Raises:
        pydantic.ValidationError: when the values do not fit the dataclass.
    """
    value: T = _adapter(kind).validate_python(plain)  # type: ignore[arg-type]
    return value


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def sha256_of(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a plain value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
