"""The sweep files that come with the package: they load, and their opening lines are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from source_tree import ROOT

from raysweep.plan import make_plan
from raysweep.sweep_file import load_sweep

FILES = sorted((ROOT / "search_spaces").glob("*.yaml"))


def _opening(path: Path) -> list[str]:
    return path.read_text().splitlines()[:3]


def test_there_are_sweep_files() -> None:
    assert {path.name for path in FILES} >= {"quickstart.yaml", "quickstart_grid.yaml", "gpt2_124m.yaml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_opens_with_what_it_sweeps_on_what_and_how_many(path: Path) -> None:
    what, hardware, candidates = _opening(path)
    assert what.startswith("# Sweeps ") and hardware.startswith("# Hardware: ")
    assert re.match(r"# Candidates: \d+", candidates)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_third_line_counts_right(path: Path) -> None:
    sweep = load_sweep(path)
    plan = make_plan(sweep)
    third = _opening(path)[2]
    counted = re.match(r"# Candidates: (\d+)", third)
    assert counted and len(plan.rows) == int(counted[1])
    launched = re.search(r"(\d+) are launched", third)
    assert plan.cost.trials == (int(launched[1]) if launched else len(plan.admitted))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_third_line_says_of_the_budget_is_predicted(path: Path) -> None:
    plan = make_plan(load_sweep(path))
    assert plan.memory_budget_bytes is not None
    too_large = [e for e in plan.estimates.values() if e.peak_bytes > plan.memory_budget_bytes]
    if "more than a quarter" in _opening(path)[2]:
        assert len(too_large) > len(plan.rows) / 4
    else:
        assert "all of them fit" in _opening(path)[2] and not too_large


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_name_is_the_file_s(path: Path) -> None:
    assert load_sweep(path).file.name == path.stem


def test_sharding_lowers_the_peak_in_one_file_and_raises_it_in_the_other() -> None:
    for name, is_lower in (("sharding_in_practice", True), ("sharding_in_practice_64_tokens", False)):
        estimates = make_plan(load_sweep(ROOT / "search_spaces" / f"{name}.yaml")).estimates
        peaks = [estimates[each].peak_bytes for each in ("s0-k0-b4-g1", "s1-k0-b4-g1", "s3-k1-b4-g1")]
        assert len(set(peaks)) == 3 and peaks == sorted(peaks, reverse=is_lower)
