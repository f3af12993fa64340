"""The pages of docs/ run as they stand: files load, models and loops are measured, output is printed."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tutorial_figures
from builders import SHORT_WINDOW
from test_page import facts
from typer.testing import CliRunner
from worker_builders import single_rank

from raysweep.candidate import Candidate
from raysweep.cli.main import app
from raysweep.ds_config import render
from raysweep.estimate.facts import with_facts
from raysweep.sweep_file import load_sweep
from raysweep.trial import LaunchRequest
from raysweep.worker.loop import measure_candidate

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MEASURED = {"own-model": "my_model", "hf-model": "llama", "hf-trainer": "my_trainer", "own-loop": "my_loop"}
"""Page of docs/how-to -> the sweep file that it writes."""


def write_files(page: Path, folder: Path) -> None:
    """Write the blocks of a page that begin with a file's name."""
    for language, name, text in re.findall(r"```(\w+)\n# (\S+\.(?:py|yaml))\n(.*?)```", page.read_text(), re.DOTALL):
        assert language in ("python", "yaml"), name
        (folder / name).write_text(text)


def console_examples(page: Path) -> list[tuple[str, str]]:
    """Command and what is shown of its output."""
    return re.findall(r"```console\n\$ raysweep ([^\n]+)\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Commands of raysweep in a page's shell blocks, less their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line.split()[1:] for line in lines if line.startswith("raysweep ")]


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize(("stage", "interval"), [(1, 1), (3, 0)])
def test_a_model_or_loop_of_a_page_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stage: int, interval: int
) -> None:
    write_files(DOCS / f"how-to/{name}.md", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MEASURED[name], raising=False)
    sweep = load_sweep(tmp_path / f"{MEASURED[name]}.yaml")
    load = replace(sweep.workload, world_size=1)
    candidate = Candidate(
        zero_stage=stage,
        activation_checkpoint_interval=interval,
        micro_batch_size_per_gpu=2,
        gradient_accumulation_steps=2,
    )
    config = render(candidate, workload=load, base=sweep.base_ds_config)
    request = LaunchRequest(candidate=candidate, workload=load, ds_config=config, window=SHORT_WINDOW)
    report = measure_candidate(request, single_rank())
    assert report.recomputed_blocks == (4 if interval else 0) and len(report.step_times_s) == 2


@pytest.mark.parametrize(
    ("name", "parameters"), [("own-loop", 4 * 33_088 + 650), ("hf-trainer", 2 * 256 * 64 + 164_416)]
)
def test_the_parameters_of_a_loop_are_counted_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, parameters: int
) -> None:
    write_files(DOCS / f"how-to/{name}.md", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sweep = with_facts(load_sweep(tmp_path / f"{MEASURED[name]}.yaml"), note=lambda text: None)
    assert sweep.workload.shape is not None, sweep.notes
    assert (sweep.workload.shape.parameters, sweep.workload.shape.blocks) == (parameters, 4)


def test_a_loop_that_cannot_be_called_here_is_swept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(DOCS / "how-to/own-loop.md", tmp_path)
    (tmp_path / "my_loop.py").write_text("def train(engine_config, meter):\n    raise RuntimeError('only on a GPU')\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sweep = with_facts(load_sweep(tmp_path / "my_loop.yaml"), note=lambda text: None)
    assert sweep.workload.shape is None and "only on a GPU" in sweep.notes[-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_what_a_page_shows_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    write_files(page, tmp_path)
    (tmp_path / "search_spaces").symlink_to(DOCS.parent / "search_spaces")
    monkeypatch.chdir(tmp_path)
    for command, shown in console_examples(page):
        printed = CliRunner().invoke(app, command.split()).output.splitlines()
        assert [line for line in shown.splitlines() if line not in (*printed, "...")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_options_of_a_pages_commands_exist(page: Path) -> None:
    for command in commands(page):
        told = CliRunner().invoke(app, [command[0], "--help"])
        assert told.exit_code == 0, command
        unknown = [word for word in command if word.startswith("--") and word not in told.output]
        assert unknown == [], command


def test_every_sweep_file_of_a_page_loads(tmp_path: Path) -> None:
    for page in PAGES:
        folder = tmp_path / page.relative_to(DOCS).as_posix().replace("/", "-")
        folder.mkdir()
        write_files(page, folder)
        for file in folder.glob("*.yaml"):
            assert load_sweep(file).space, file


def test_the_tutorial_has_a_place_for_the_figures_of_a_run() -> None:
    tutorial = (DOCS / "tutorial.md").read_text()
    written = tutorial_figures.put(tutorial_figures.figures(facts()), tutorial)
    assert "Winner, confirmed: `s2-k2-b2-g2` with 100.00 samples/s" in written
    assert written.count("<!-- end of figures -->") == 1 and "Against plain data parallelism" in written
