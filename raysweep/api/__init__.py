"""The Python API: what the command line does, as four functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep import sweep_file
from raysweep.errors import ConfigError
from raysweep.estimate.facts import with_facts
from raysweep.plan import SweepPlan, make_plan
from raysweep.results.export import read_selection
from raysweep.results.records import TrialRecord
from raysweep.results.select import Selection
from raysweep.results.store import load_trials
from raysweep.search import sweep_run
from raysweep.search.observer import Observer
from raysweep.search.pruning import Pruning
from raysweep.search.sweep_result import SweepResult
from raysweep.sweep_file import Sweep
from raysweep.trial import Measurement

__all__ = ["Results", "Sweep", "SweepPlan", "SweepResult", "load_results", "load_sweep", "make_plan", "run_sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a results folder holds."""

    trials: Sequence[TrialRecord]
    """One record a candidate, every candidate of the space."""
    selection: Selection | None
    """The winner and why the others lost; None while the sweep runs."""


def load_sweep(path: str | Path, *, search: Mapping[str, Any] | None = None, results: str | None = None) -> Sweep:
    """Read a sweep file and count its model.

    Args:
        path: the file.
        search: values of its `search` section that replace what is written there.
        results: a results folder or URI in place of the file's.

    Raises:
        ConfigError: when the file breaks a rule, or its model cannot be built.
    """
    return with_facts(sweep_file.load_sweep(path, search=search, results=results), note=lambda text: None)


def run_sweep(
    sweep: Sweep,
    *,
    on_trial: Callable[[Measurement], None] | None = None,
    address: str | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    overwrite: bool = False,
    check: bool = True,
    force: bool = False,
    audit_share: float = 0.0,
    calibrates: bool = True,
) -> SweepResult:
    """Search, confirm and export.

    Args:
        sweep: of `load_sweep`.
        on_trial: called with each launch when it is over, in this process.
        address: an existing Ray cluster; by default the file's, else a local Ray is started.
        resume: go on with the records of an earlier run.
        retry_failed: and launch again what failed in it.
        overwrite: remove what an earlier run left.
        check: look the nodes over first.
        force: launch also what is predicted not to fit in memory.
        audit_share: share of what is predicted not to fit, 0 to 1, that is launched after the search to see.
        calibrates: use what earlier sweeps showed of predicted memory, in a guided search.

    Raises:
        RaysweepError: what the command line ends with; see docs/results.md for its kinds.
    """
    if not 0 <= audit_share <= 1:
        raise ConfigError(key="audit_share", value=audit_share, rule="is a share, from 0 to 1", nearest="0.05")
    return sweep_run.run_sweep(
        sweep,
        observer=_Trials(on_trial),
        address=address,
        resume=resume,
        retry_failed=retry_failed,
        overwrite=overwrite,
        check=check,
        pruning=Pruning(force=force, audit_share=audit_share, calibrates=calibrates),
    )


def load_results(results: str) -> Results:
    """What is in a results folder or URI.

    Raises:
        RaysweepError: when nothing has been written there.
    """
    return Results(trials=load_trials(results), selection=read_selection(results))


class _Trials(Observer):
    def __init__(self, on_trial: Callable[[Measurement], None] | None) -> None:
        self._on_trial = on_trial

    def measured(self, measurement: Measurement) -> None:
        if self._on_trial is not None:
            self._on_trial(measurement)
