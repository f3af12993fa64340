"""The code that the nodes of a cluster get through Ray's runtime environment: raysweep itself, and the user's own."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import raysweep
from raysweep.model_schema import FUNCTION_KINDS


def code_for_nodes(model: Mapping[str, Any]) -> dict[str, Any]:
    """What a node needs beside its installed packages, as keys of a runtime environment.

    Every node runs the raysweep of the driver, whether one is installed there or not. Of a model that is the user's own
    function the folder of `python_path` becomes the working directory; without one its top package is sent, unless it
    is installed.

    Args:
        model: the workload's model section.
    """
    modules = [str(Path(raysweep.__file__).parent)]
    if model["kind"] not in FUNCTION_KINDS:
        return {"py_modules": modules}
    if model["python_path"] is not None:
        return {"py_modules": modules, "working_dir": model["python_path"]}
    own = _own_source(find_spec(model[model["kind"]].partition(":")[0].partition(".")[0]))
    return {"py_modules": modules + ([own] if own else [])}


def _own_source(spec: ModuleSpec | None) -> str | None:
    """The folder of a package or the file of a module; None for what comes with Python or was installed."""
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    source = Path(places[0] if places else spec.origin or "")
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    if not source.exists() or any(source.is_relative_to(folder) for folder in installed):
        return None
    return str(source)
