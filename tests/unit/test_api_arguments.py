"""The Python API hands on what the command line has options for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import write_sweep

from raysweep import api
from raysweep.errors import ConfigError
from raysweep.search import sweep_run
from raysweep.search.pruning import Pruning


def test_force_and_audit_reach_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(sweep_run, "run_sweep", lambda sweep, **given: seen.update(given))
    sweep = api.load_sweep(write_sweep(tmp_path))
    api.run_sweep(sweep, force=True, audit_share=0.05, calibrates=False)
    assert seen["pruning"] == Pruning(force=True, audit_share=0.05, calibrates=False)
    api.run_sweep(sweep)
    assert seen["pruning"] == Pruning()


def test_a_percentage_is_no_share(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="from 0 to 1"):
        api.run_sweep(api.load_sweep(write_sweep(tmp_path)), audit_share=5)
