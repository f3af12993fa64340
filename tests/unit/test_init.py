"""The sweep file that `raysweep init` writes: it loads, says why, and harms no file that is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysweep.cli.main import app
from raysweep.errors import ConfigError
from raysweep.plan import make_plan
from raysweep.sweep_file import load_sweep
from raysweep.sweep_template import Answers, sweep_text


def _answers(**changes: object) -> Answers:
    values = {"name": "mine", "model": "gpt", "workers": 2, "global_batch_size": 16, "sequence_length": 128}
    return Answers(**{**values, "on_gpu": False, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("model", ["gpt", "GPT2Config", "package.module:function"])
def test_what_is_written_loads(tmp_path: Path, model: str, on_gpu: bool) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(sweep_text(_answers(model=model, on_gpu=on_gpu)))
    sweep = load_sweep(path)
    assert len(make_plan(sweep).rows) == 4 * 3 * 4
    assert sweep.workload.device == ("cuda" if on_gpu else "cpu")


def test_a_config_file_is_taken_from_beside_the_sweep_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    path = tmp_path / "mine.yaml"
    path.write_text(sweep_text(_answers(model="config.json")))
    assert load_sweep(path).workload.model["config"] == {"model_type": "gpt2"}


@pytest.mark.parametrize(
    ("workers", "batch", "micro"), [(2, 16, "[1, 2, 4, 8]"), (8, 1024, "[16, 32, 64, 128]"), (3, 9, "[1]")]
)
def test_micro_batches_are_legal_and_the_largest(workers: int, batch: int, micro: str) -> None:
    assert f"micro_batch_size_per_gpu: {micro}" in sweep_text(_answers(workers=workers, global_batch_size=batch))


def test_a_batch_that_cannot_be_shared_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="nearest valid: 252 or 259"):
        sweep_text(_answers(workers=7, global_batch_size=256))


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    result = CliRunner().invoke(app, ["init", str(path)])
    assert result.exit_code == 2 and "is there already" in result.output
    assert path.read_text() == "mine"


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raysweep.cli.main", "init", "mine.yaml", "--workers", "4", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--batch was not given: 16 is taken" in done.stderr
    assert load_sweep(tmp_path / "mine.yaml").workload.world_size == 4


def test_a_model_that_is_not_there_leaves_no_file(tmp_path: Path) -> None:
    given = ["init", str(tmp_path / "mine.yaml"), "--model", "GPT3Config", "--device", "cpu"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2 and "GPT3Config" in result.output
    assert list(tmp_path.iterdir()) == []
