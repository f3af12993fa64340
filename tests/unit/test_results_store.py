"""Parquet files hold what the journal holds, and appear whole or not at all."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from results_builders import completed, confirmed, failed, ident, plan_row, sweep

from raysweep.errors import ConfigError, RaysweepError
from raysweep.measurement import Figures
from raysweep.results import store
from raysweep.results.journal import Journal, JournalContents, read_journal
from raysweep.results.paths import ResultsPaths
from raysweep.results.records import TrialRecord
from raysweep.results.schema import measurements_schema, trials_schema
from raysweep.serde import to_dict
from raysweep.trial import Measurement, RankFailure, TrialStatus


def contents() -> JournalContents:
    failure = RankFailure(rank=1, node="n1", message="it's out", data={"peak_bytes": 5})
    oom = failed(ident(2), TrialStatus.OOM, reason="out of memory", peak_memory_bytes=7, failures=(failure,))
    launches = (completed(ident(1)), oom, *confirmed(ident(1), (100.0, 101.0, 102.0)))
    rows = (plan_row(1), plan_row(2), plan_row(4))
    return JournalContents(sweeps=(sweep(*rows),), measurements=launches)


def test_columns_are_the_fields() -> None:
    assert trials_schema().names == [each.name for each in fields(TrialRecord)]
    told = {each.name for kind in (Measurement, Figures) for each in fields(kind)} - {"figures"}
    assert set(measurements_schema().names) == told
    assert trials_schema().metadata == {b"schema_version": b"1"}


def test_trials_come_back_as_they_went(tmp_path: Path) -> None:
    store.compact(contents(), filesystem=pafs.LocalFileSystem(), folder=str(tmp_path))
    assert store.load_trials(str(tmp_path)) == store.records_from(contents())
    assert pq.read_schema(tmp_path / "trials.parquet").metadata[b"schema_version"] == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["measurements.parquet", "trials.parquet"]


def test_measurements_have_a_row_a_launch(tmp_path: Path) -> None:
    store.compact(contents(), filesystem=pafs.LocalFileSystem(), folder=str(tmp_path))
    rows = store.load_measurements(str(tmp_path)).to_pylist()
    assert [(row["phase"], row["round"]) for row in rows] == [("search", 0), ("search", 0)] + [
        ("confirm", number) for number in (1, 2, 3)
    ]
    assert rows[0]["step_times_s"] == [0.16] * 8 and rows[0]["worker_pids"] == [11, 12]
    assert (rows[1]["samples_per_s"], rows[1]["peak_memory_bytes"]) == (None, 7)
    assert json.loads(rows[1]["failures"])[0]["message"] == "it's out"
    assert rows[2]["peak_memory_bytes"] == 50 * 2**20 and rows[2]["nodes"] == ["n0", "n1"]


def test_a_sweep_without_launches_has_both_files(tmp_path: Path) -> None:
    empty = JournalContents(sweeps=(sweep(plan_row(1)),))
    store.compact(empty, filesystem=pafs.LocalFileSystem(), folder=str(tmp_path))
    assert store.load_measurements(str(tmp_path)).num_rows == 0
    assert store.load_trials(str(tmp_path))[0].status is TrialStatus.SKIPPED


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_cut_short_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    filesystem, path = pafs.LocalFileSystem(), str(tmp_path / "t.parquet")
    store.write_table_whole(filesystem, path, pa.table({"x": [1]}))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, broken, killed)
    with pytest.raises(KeyboardInterrupt):
        store.write_table_whole(filesystem, path, pa.table({"x": [2, 3]}))
    assert pq.read_table(path).to_pydict() == {"x": [1]}
    assert [each.name for each in tmp_path.iterdir()] == ["t.parquet"]


def test_a_uri_is_written_by_one_put(tmp_path: Path) -> None:
    filesystem, folder = store.open_filesystem("mock://bucket/sweep")
    store.compact(contents(), filesystem=filesystem, folder=folder)
    names = [info.base_name for info in filesystem.get_file_info(pafs.FileSelector(folder))]
    assert sorted(names) == ["measurements.parquet", "trials.parquet"]
    store.compact(contents(), filesystem=pafs.LocalFileSystem(), folder=str(tmp_path / "a b"))
    assert len(store.load_trials((tmp_path / "a b").as_uri())) == 3


def test_an_unknown_kind_of_uri_is_refused() -> None:
    with pytest.raises(ConfigError, match="results: 'nowhere://x'"):
        store.open_filesystem("nowhere://x")


def test_the_compactor_waits_30_s(tmp_path: Path) -> None:
    paths = ResultsPaths(str(tmp_path))
    with Journal.open(paths.journal) as journal:
        journal.append("sweep", to_dict(sweep(plan_row(1))))
    now = [0.0]
    compactor = store.Compactor(paths.journal, uri=str(tmp_path), clock=lambda: now[0])
    assert not compactor.tick() and not paths.trials.exists()
    now[0] = 30.0
    assert compactor.tick() and paths.trials.exists()
    assert not compactor.tick()
    assert len(read_journal(paths.journal).sweep.plan_rows) == 1


def test_an_unreachable_store_does_not_end_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ResultsPaths(str(tmp_path))
    with Journal.open(paths.journal) as journal:
        journal.append("sweep", to_dict(sweep(plan_row(1))))
    now = [0.0]
    compactor = store.Compactor(paths.journal, uri="mock://bucket/sweep", clock=lambda: now[0])

    def unreachable(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(store, "write_whole", unreachable)
    now[0] = 31.0
    assert compactor.tick() is False
    with pytest.raises(OSError, match="no route"):
        compactor.finish()


def test_no_results_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RaysweepError, match=r"has no trials\.parquet"):
        store.load_trials(str(tmp_path))


def test_a_parquet_file_that_is_behind_the_journal_is_not_read(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.jsonl") as journal:
        journal.append("sweep", to_dict(sweep(plan_row(1), plan_row(2))))
        journal.append("measurement", to_dict(completed(ident(1))))
        store.Compactor(tmp_path / "journal.jsonl", uri=str(tmp_path)).finish()
        journal.append("measurement", to_dict(completed(ident(2))))
    statuses = [record.status for record in store.load_trials(str(tmp_path))]
    assert statuses == [TrialStatus.COMPLETED] * 2
