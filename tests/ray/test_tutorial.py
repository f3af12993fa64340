"""The commands of README and tutorial, as they stand, in their order, on the files that they name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_how_to import commands

from raysweep.cli.main import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial.md"


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "raysweep.cli.main", *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "search_spaces", tmp_path / "search_spaces")
    found = commands(TUTORIAL)
    assert [command[0] for command in found][:3] == ["plan", "plan", "run"]
    for command in found:
        ran = _run(command, tmp_path)
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    results = tmp_path / "results/sharding_in_practice"
    assert (results / "report.html").exists() and (results / "best/ds_config.json").exists()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_what_make_sweep_runs_and_readme_shows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "search_spaces", tmp_path / "search_spaces")
    (made,) = re.findall(r"raysweep\.cli\.main (run .*)", (ROOT / "Makefile").read_text())
    ran = _run(made.split(), tmp_path)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    (shown,) = re.findall(r"`raysweep (show \S+)` prints every candidate", README.read_text())
    printed = _run(shown.split(), tmp_path)
    assert printed.returncode == 0 and "memory budget a worker: 56.0 MiB" in printed.stdout


def test_what_readme_makes_is_a_target() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)[`\s]", README.read_text()))
    assert {"sweep", "test"} <= named and named - targets - {"and"} == set()


def test_the_verbs_and_options_that_readme_names_exist() -> None:
    verbs = {command.name or command.callback.__name__: command for command in app.registered_commands}  # type: ignore[union-attr]
    named = [text.split() for text in re.findall(r"(?:`|\$ )raysweep ([^`\n]+)", README.read_text())]
    assert len(named) > 5
    for verb, *words in named:
        assert verb in verbs, verb
        told = subprocess.run(
            [sys.executable, "-m", "raysweep.cli.main", verb, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert [word for word in words if word.startswith("--") and word not in told] == [], (verb, words)
