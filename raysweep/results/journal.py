"""The append-only journal: one JSON line for each thing that happened, on disk before the sweep goes on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from raysweep.errors import RaysweepError, StorageError
from raysweep.serde import from_dict
from raysweep.trial import GroupEnd, Measurement, SweepStart


class EntryKind(StrEnum):
    """What a line of the journal tells."""

    SWEEP = "sweep"
    """A driver started, or resumed, the sweep: a `SweepStart`."""
    MEASUREMENT = "measurement"
    """A launch ended: a `Measurement`."""
    GROUP_END = "group_end"
    """A worker group ended: a `GroupEnd`."""
    FINISHED = "finished"
    """The driver came to its end: a mapping with `reason`, the words for why no further candidate was launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """A journal, read."""

    sweeps: tuple[SweepStart, ...] = ()
    """Oldest first; more than one where the sweep was resumed."""
    measurements: tuple[Measurement, ...] = ()
    group_ends: tuple[GroupEnd, ...] = ()
    finished: Mapping[str, Any] | None = None
    """None while a sweep is running, and where its driver was killed."""

    @property
    def sweep(self) -> SweepStart:
        """The latest start.

        Raises:
            RaysweepError: where the journal has none.
        """
        if not self.sweeps:
            raise RaysweepError(message="the journal is empty: no sweep has started here")
        return self.sweeps[-1]


class Journal:
    """Appends entries; each is flushed and synced before `append` returns."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    @classmethod
    def open(cls, path: str | Path) -> Journal:
        """Open a journal for appending, and make it where it is missing; a torn last line is cut off."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
        intact = sum(len(line) for line in _intact_lines(path))
        if file.tell() > intact:
            file.truncate(intact)
        _sync_folder(path.parent)
        return cls(file)

    def append(self, kind: str, record: Mapping[str, Any]) -> None:
        """Write one entry; `record` holds plain JSON values.

        Raises:
            StorageError: when it cannot be written; the journal is then as it was before.
        """
        line = json.dumps({"kind": EntryKind(kind).value, "record": record}, separators=(",", ":")).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        try:
            _write_all(self._file, line)
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise StorageError(path=str(self._file.name), reason=error.strerror or str(error)) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: str | Path) -> JournalContents:
    """Read a journal; a last line that was torn by a crash is ignored.

    Raises:
        RaysweepError: when there is no journal, or a line before the last is damaged.
    """
    if not Path(path).exists():
        raise RaysweepError(message=f"no sweep has written here: {path} does not exist")
    sweeps: list[SweepStart] = []
    measurements: list[Measurement] = []
    group_ends: list[GroupEnd] = []
    finished: Mapping[str, Any] | None = None
    for line in _intact_lines(Path(path)):
        entry = json.loads(line)
        match entry["kind"]:
            case EntryKind.SWEEP:
                sweeps.append(from_dict(SweepStart, entry["record"]))
                finished = None
            case EntryKind.MEASUREMENT:
                measurements.append(from_dict(Measurement, entry["record"]))
            case EntryKind.GROUP_END:
                group_ends.append(from_dict(GroupEnd, entry["record"]))
            case EntryKind.FINISHED:
                finished = entry["record"]
            case unknown:
                raise RaysweepError(message=f"{path}: entry kind {unknown!r} is of another version of raysweep")
    return JournalContents(
        sweeps=tuple(sweeps),
        measurements=tuple(measurements),
        group_ends=tuple(group_ends),
        finished=finished,
    )


def _write_all(file: FileIO, content: bytes) -> None:
    """A raw file may take a part only, where a disk has room for no more; the rest then says why."""
    while content:
        content = content[file.write(content) :]


def _intact_lines(path: Path) -> list[bytes]:
    """All lines but a torn last one: cut short, or left as filler by a file system that lost power."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if line.endswith(b"\n") and _is_json(line):
            continue
        if number == len(lines):
            return lines[:-1]
        raise RaysweepError(message=f"{path}: line {number} is damaged; lines behind it are intact")
    return lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """A new file's name is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
