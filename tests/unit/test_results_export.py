"""The winner's files: what was measured, loadable as it stands; and the table for people."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from results_builders import WORKLOAD, completed, confirmed, failed, ident, plan_row, records, sweep

from raysweep.results.export import BestCandidate, read_selection, remove_best, write_best, write_selection
from raysweep.results.paths import ResultsPaths
from raysweep.results.report import failures_by_cause, render_report, results_table
from raysweep.results.select import choose_winner
from raysweep.serde import sha256_of
from raysweep.trial import FailureKind, MemoryKind, SweepStart, TrialStatus

DS_CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "reduce_bucket_size": 500000000}}


def best(*, is_confirmed: bool = True, **values: Any) -> BestCandidate:
    launches = [completed(ident(1)), *(confirmed(ident(1), (100.0, 101.0, 102.0)) if is_confirmed else [])]
    found = records(*launches)
    return BestCandidate(
        **{
            "record": found[0],
            "selection": choose_winner(found, measurements=launches),
            "sweep": sweep(plan_row(1)),
            "ds_config": DS_CONFIG,
            "ds_config_sha256": sha256_of(DS_CONFIG),
            "candidate": plan_row(1).candidate,
            "exported_at": "2026-01-01T00:00:00+00:00",
        }
        | values
    )


def in_environment(**variables: str) -> SweepStart:
    return sweep(plan_row(1), workload=replace(WORKLOAD, environment=variables))


def test_the_exported_config_is_what_was_measured(tmp_path: Path) -> None:
    write_best(str(tmp_path), best())
    paths = ResultsPaths(str(tmp_path))
    assert sha256_of(json.loads(paths.ds_config.read_text())) == sha256_of(DS_CONFIG)
    assert '"reduce_bucket_size": 500000000' in paths.ds_config.read_text()
    names = sorted(path.name for path in paths.best.iterdir())
    assert names == ["best.yaml", "ds_config.json", "env.sh", "train_ray.py"]
    with pytest.raises(AssertionError, match="what is exported is what was measured"):
        best(ds_config_sha256="0" * 64)


def test_best_yaml_tells_figures_and_provenance(tmp_path: Path) -> None:
    candidate = replace(plan_row(1).candidate, deepspeed={"zero_optimization.overlap_comm": True}, torch_compile=True)
    write_best(str(tmp_path), best(candidate=candidate))
    told = yaml.safe_load(ResultsPaths(str(tmp_path)).best_yaml.read_text())
    assert told["candidate"]["candidate_id"] == ident(1)
    assert told["candidate"]["deepspeed"] == {"zero_optimization.overlap_comm": True}
    assert told["candidate"]["torch_compile"] is True and told["candidate"]["attn_implementation"] is None
    assert told["figures"]["confirmed"] is True
    assert told["figures"]["samples_per_s"] == pytest.approx(101.0, rel=1e-3)
    assert told["provenance"]["versions"] == {"torch": "2.13.0"}
    assert told["provenance"]["sweep_sha256"] == "s" * 64


def test_the_environment_is_quoted_for_a_shell(tmp_path: Path) -> None:
    write_best(str(tmp_path), best(sweep=in_environment(NOTE="it's $HOME; `id`", OMP_NUM_THREADS="1")))
    script = ResultsPaths(str(tmp_path)).environment_script
    shown = subprocess.run(["sh", "-c", f'. "{script}"; printf %s "$NOTE"'], capture_output=True, text=True, check=True)
    assert shown.stdout == "it's $HOME; `id`"
    assert "export OMP_NUM_THREADS=1\n" in script.read_text()


def test_an_unconfirmed_best_says_so_until_it_is_confirmed(tmp_path: Path) -> None:
    paths = ResultsPaths(str(tmp_path))
    write_best(str(tmp_path), best(is_confirmed=False))
    assert "has not been confirmed" in paths.unconfirmed_marker.read_text()
    assert paths.ds_config.exists()
    write_best(str(tmp_path), best())
    assert not paths.unconfirmed_marker.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_write_cut_short_leaves_the_old_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_best(str(tmp_path), best())
    paths = ResultsPaths(str(tmp_path))
    before = paths.best_yaml.read_text()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("raysweep.results.export.shlex.quote", killed)
        write_best(str(tmp_path), best(sweep=in_environment(A="b"), exported_at="later"))
    assert paths.best_yaml.read_text() == before
    write_best(str(tmp_path), best(exported_at="later"))
    assert "later" in paths.best_yaml.read_text()


def test_without_a_winner_no_old_best_is_left(tmp_path: Path) -> None:
    write_best(str(tmp_path), best())
    remove_best(str(tmp_path))
    remove_best(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_selection_json_comes_back(tmp_path: Path) -> None:
    assert read_selection(str(tmp_path)) is None
    write_selection(str(tmp_path), best().selection)
    assert read_selection(str(tmp_path)) == best().selection


def some_failures() -> list[Any]:
    died = [
        failed(ident(n), TrialStatus.FAILED, failure_kind=FailureKind.USER_CODE, reason=f"rank {n} on n{n}: bad {n}")
        for n in (3, 4)
    ]
    oom = [
        failed(ident(n), TrialStatus.OOM, memory_kind=MemoryKind.DEVICE, reason=f"{n} bytes", peak_memory_bytes=2**30)
        for n in (5, 6, 7)
    ]
    return [*died, *oom]


def test_failures_are_grouped_by_cause() -> None:
    causes = failures_by_cause(records(*some_failures()))
    assert [(each.cause, each.count) for each in causes] == [("OOM (device)", 3), ("FAILED (user_code)", 2)]
    assert causes[1].example == "rank 3 on n3: bad 3"


def test_the_table_has_the_winner_first_and_every_candidate() -> None:
    launches = [
        completed(ident(1), 90),
        completed(ident(2), 100),
        *confirmed(ident(2), (100.0, 101.0, 102.0)),
        *some_failures(),
    ]
    found = records(*launches)
    chosen = choose_winner(found, measurements=launches)
    rows = results_table(found, selection=chosen)
    assert [row.candidate_id for row in rows[:2]] == [ident(2), ident(1)]
    assert (rows[0].mark, rows[0].samples_per_s, len(rows)) == ("*", "100.00", 7)
    text = render_report(found, selection=chosen)
    assert "memory budget a worker: 100.0 MiB" in text and "3 x OOM (device)" in text
    assert f"winner: {ident(2)}, 101.00 samples/s" in text


def test_a_report_without_a_winner_says_so() -> None:
    found = records(*some_failures())
    text = render_report(found, selection=choose_winner(found, measurements=some_failures()))
    assert "No winner: no candidate completed within the budget." in text
    assert (
        replace(found[0], reason="x" * 300).reason
        not in render_report([replace(found[0], reason="x" * 300)], selection=None).split("by cause")[0]
    )
