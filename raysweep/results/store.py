"""Writes whole files to any file system, compacts the journal into Parquet, and reads it back."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raysweep.errors import ConfigError, RaysweepError
from raysweep.results.journal import JournalContents, read_journal
from raysweep.results.paths import JOURNAL, MEASUREMENTS, TRIALS
from raysweep.results.records import TrialRecord, derive_records
from raysweep.results.schema import measurements_table, records_of, trials_table

COMPACT_EVERY_S = 30.0

_log = logging.getLogger(__name__)


def open_filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system and the path in it of a local folder or of a URI such as `s3://bucket/sweep`.

    Raises:
        ConfigError: when the URI is not one, or its kind is unknown.
    """
    if "://" not in uri:
        return pafs.LocalFileSystem(), os.path.abspath(uri)
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except ValueError as error:
        raise ConfigError(key="results", value=uri, rule=str(error)) from None
    return filesystem, path


def write_whole(filesystem: pafs.FileSystem, path: str, content: bytes | pa.Buffer) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    On a local disk it is written under another name, synced, and put in place by a rename; elsewhere by one put, which
    object stores make visible as a whole.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        filesystem.create_dir(os.path.dirname(path), recursive=True)
        with filesystem.open_output_stream(path) as stream:
            stream.write(content)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)


def write_table_whole(filesystem: pafs.FileSystem, path: str, table: pa.Table) -> None:
    """Write a table as Parquet, whole or not at all."""
    encoded = pa.BufferOutputStream()
    pq.write_table(table, encoded)
    write_whole(filesystem, path, encoded.getvalue())


def records_from(contents: JournalContents) -> list[TrialRecord]:
    """The records of a journal's latest sweep."""
    finished = contents.finished or {}
    return derive_records(
        contents.sweep,
        measurements=contents.measurements,
        group_ends=contents.group_ends,
        stop_reason=str(finished.get("reason", "")),
        bounded=finished.get("bounded", {}),
    )


def compact(contents: JournalContents, *, filesystem: pafs.FileSystem, folder: str) -> None:
    """Write both Parquet files of a journal into a folder."""
    write_table_whole(filesystem, f"{folder}/{MEASUREMENTS}", measurements_table(contents.measurements))
    write_table_whole(filesystem, f"{folder}/{TRIALS}", trials_table(records_from(contents)))


def copy_folder(folder: str, *, uri: str) -> None:
    """Copy a local folder with all that it holds to a results URI.

    Raises:
        OSError: when it cannot be written.
    """
    filesystem, path = open_filesystem(uri)
    pafs.copy_files(folder, path, destination_filesystem=filesystem)


def fetch_folder(uri: str, folder: Path) -> None:
    """Copy what lies under a results URI into a local folder.

    Raises:
        OSError: when it cannot be read.
    """
    filesystem, path = open_filesystem(uri)
    folder.mkdir(parents=True, exist_ok=True)
    pafs.copy_files(path, str(folder), source_filesystem=filesystem)


class Compactor:
    """Keeps the Parquet files of a running sweep up to date, without writing them after each launch."""

    def __init__(self, journal: Path, *, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._filesystem, self._folder = open_filesystem(uri)
        self._clock = clock
        self._compacted_at_s = clock()

    def tick(self) -> bool:
        """Compact where 30 s have passed since the last time; tells whether it was done.

        A store that cannot be reached does not end the sweep: the journal has the rows, and the next tick tries again.
        """
        if self._clock() - self._compacted_at_s < COMPACT_EVERY_S:
            return False
        self._compacted_at_s = self._clock()
        try:
            self.finish()
        except OSError as error:
            _log.warning("results not compacted, the journal keeps them: %s", error)
            return False
        return True

    def finish(self) -> None:
        """Compact now.

        Raises:
            OSError: when the files cannot be written.
        """
        compact(read_journal(self._journal), filesystem=self._filesystem, folder=self._folder)


def load_trials(root: str) -> list[TrialRecord]:
    """The records of a results folder or URI; of the journal where the Parquet file is behind it.

    Raises:
        RaysweepError: when nothing has been written there.
    """
    return records_of(_load(root, TRIALS))


def load_measurements(root: str) -> pa.Table:
    """The launches of a results folder or URI, as a table; of the journal where the Parquet file is behind it.

    Raises:
        RaysweepError: when nothing has been written there.
    """
    return _load(root, MEASUREMENTS)


def _load(root: str, name: str) -> pa.Table:
    filesystem, folder = open_filesystem(root)
    path = f"{folder}/{name}"
    journal = Path(root, JOURNAL)
    if journal.is_file() and not _is_newer(Path(path), journal):
        contents = read_journal(journal)  # a sweep that is running, or was killed, or whose disk was full
        return (
            measurements_table(contents.measurements) if name == MEASUREMENTS else trials_table(records_from(contents))
        )
    if filesystem.get_file_info(path).type is not pafs.FileType.File:
        raise RaysweepError(message=f"no results here: {root} {_why_not(filesystem, folder, name)}")
    return pq.read_table(path, filesystem=filesystem)


def _is_newer(parquet: Path, journal: Path) -> bool:
    return parquet.exists() and parquet.stat().st_mtime_ns > journal.stat().st_mtime_ns


def _why_not(filesystem: pafs.FileSystem, folder: str, name: str) -> str:
    kind = filesystem.get_file_info(folder).type
    if kind is pafs.FileType.File:
        return "is a file; give the folder that it is in"
    known = ", ".join(sorted(str(path.parent) for path in Path().glob(f"results/*/{TRIALS}")))
    lacks = "is not there" if kind is pafs.FileType.NotFound else f"has no {name}"
    return f"{lacks}; there are results in {known}" if known else lacks
