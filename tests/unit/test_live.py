"""Progress at a terminal and in a pipe, and the question before a large sweep."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import typer
from builders import write_sweep
from results_builders import completed, confirmed, failed
from rich.console import Console

from raysweep.cli import run as verb
from raysweep.cli.live import LiveTable
from raysweep.cli.progress import Lines
from raysweep.plan import make_plan
from raysweep.sweep_file import load_sweep
from raysweep.trial import Phase, TrialStatus


def _drawn(table: LiveTable) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table.draw())
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_shows_what_runs_what_ended_and_how_far_it_is(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    now = [0.0]
    table = LiveTable(sweep, Console(file=io.StringIO()), clock=lambda: now[0])
    with table:
        table.planned(make_plan(sweep), 16)
        table.note("searching")
        table.measured(completed("s1-k0-b2-g2", 120.0))
        table.measured(failed("s0-k0-b2-g2", TrialStatus.OOM))
        now[0] = 90.0
        table.launching("s3-k0-b2-g2", Phase.SEARCH, 0)
        now[0] = 100.0
        drawn = _drawn(table)
        table.measured(confirmed("s1-k0-b2-g2", (100.0,))[0])
        in_confirmation = _drawn(table)
    assert "s3-k0-b2-g2" in drawn and "running 10.0 s" in drawn
    assert "120.00" in drawn and "OOM" in drawn
    assert "2 of 16 launched, 1 min 40 s, 0.06 worker-hours; about 11 min 40 s of search left" in drawn
    assert "best so far: s1-k0-b2-g2 with 120.00 samples/s" in drawn
    assert "round 1" in in_confirmation and "running" not in in_confirmation


def test_a_pipe_gets_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    lines = Lines(sweep)
    lines.planned(make_plan(sweep), 16)
    lines.launching("s1-k0-b2-g2", Phase.SEARCH, 0)
    lines.measured(completed("s1-k0-b2-g2", 120.0))
    lines.measured(confirmed("s1-k0-b2-g2", (100.0,))[0])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and printed.count("s1-k0-b2-g2  ") == 3
    assert "1/16  s1-k0-b2-g2" in printed and "round 1  s1-k0-b2-g2" in printed


def test_a_large_sweep_is_asked_about_and_no_is_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(verb, "ASK_ABOVE_WORKER_HOURS", 0.01)
    monkeypatch.setattr(verb, "Console", lambda: Console(file=io.StringIO(), force_terminal=True))
    monkeypatch.setattr("typer.confirm", lambda text, abort: asked.append(text) or _refuse())
    with pytest.raises(typer.Abort):
        verb.run(sweep, address=None, resume=False, overwrite=False, retry_failed=False, yes=False)
    assert "0.1 worker-hours" in asked[0]
    assert not (tmp_path / "results").exists()


def _refuse() -> None:
    raise typer.Abort
