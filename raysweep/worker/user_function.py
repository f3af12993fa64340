"""Imports the function that a model section names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from raysweep.errors import ConfigError, nearest_name


def import_function(model: Mapping[str, Any], key: str) -> Callable[..., Any]:
    """The function that a model section names at `key` as `package.module:function`, found in its `python_path`, too.

    Raises:
        ConfigError: when the module has no such function.
        Exception: whatever the user's module raises on import.
    """
    if model["python_path"] is not None and model["python_path"] not in sys.path:
        sys.path.insert(0, model["python_path"])
    module_name, _, attribute = model[key].partition(":")
    module = importlib.import_module(module_name)
    if not callable(getattr(module, attribute, None)):
        near = nearest_name(attribute, [known for known in vars(module) if callable(getattr(module, known))])
        rule = f"{module.__name__} has no function of this name"
        raise ConfigError(key=f"model.{key}", value=model[key], rule=rule, nearest=near)
    found: Callable[..., Any] = getattr(module, attribute)
    return found
