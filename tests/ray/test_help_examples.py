"""The examples that the help of the verbs on results gives, as they stand, on a small sweep of the same name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sweeps import TINY

pytestmark = pytest.mark.ray
TIMEOUT_S = 250


def _raysweep(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raysweep.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def _examples(verb: str) -> list[list[str]]:
    lines = _raysweep(verb, "--help", folder=Path.cwd()).stdout.splitlines()
    return [line.split()[1:] for line in lines if line.strip().startswith("raysweep ")]


@pytest.mark.timeout(600)
def test_the_examples_of_the_verbs_on_results_work_in_this_order(tmp_path: Path) -> None:
    sweep = {
        **TINY,
        "name": "quickstart",
        "workers": {"count": 1, "resources_per_worker": {"CPU": 0.5}},
        "space": {"zero_stage": [0, 1], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [1, 2, 4]},
        "search": {"method": "random", "trials": 2, "confirm": False},
        "launcher": "in_process",
    }
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces/quickstart.yaml").write_text(yaml.safe_dump(sweep))
    for verb, exit_code in (("run", 5), ("show", 0), ("export", 0), ("report", 0), ("compare", 0), ("predict", 0)):
        examples = _examples(verb)
        assert examples
        for example in examples:
            ran = _raysweep(*example, folder=tmp_path)
            assert ran.returncode == exit_code, (example, ran.stdout, ran.stderr)
    results = tmp_path / "results/quickstart"
    assert (results / "best/ds_config.json").exists() and (results / "report.html").exists()
    assert (tmp_path / "exported/hf/training_arguments.json").exists()
