"""Lets one driver at a time write to a results folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from raysweep.errors import ConfigError

HEARTBEAT_STALE_S = 120.0
"""A holder on another host that has been silent for this long is taken for dead."""


class SweepLock:
    """A held lock: an flock on the file, which also tells who holds it.

    The kernel lets go of the flock when its process dies, so a dead driver's lock is free at once. Some network file
    systems keep an flock to one host; there the heartbeat of a holder on another host decides.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @classmethod
    def acquire(cls, path: str | Path) -> SweepLock:
        """Take the lock.

        Raises:
            ConfigError: when another driver holds it; names its host and process id.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(file)
            file.close()
            raise _refusal(path, holder) from None
        holder = _read_holder(file)
        if _is_alive_elsewhere(holder):
            file.close()
            raise _refusal(path, holder)
        lock = cls(file)
        lock.beat()
        return lock

    def beat(self) -> None:
        """Note that the holder is alive; call it at least once a minute."""
        self._rewrite(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "heartbeat_s": time.time()}))

    def release(self) -> None:
        """Give the lock back. The file stays: to delete it would let two drivers hold two files of one name."""
        self._rewrite("")
        self._file.close()

    def _rewrite(self, text: str) -> None:
        # Written over the old text and then cut: a driver that is refused meanwhile must still read a whole record.
        self._file.seek(0)
        self._file.write(text)
        self._file.flush()
        self._file.truncate()

    def __enter__(self) -> SweepLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _read_holder(file: TextIO) -> dict[str, Any]:
    """Who wrote the lock last; empty where it was given back, or is being written."""
    file.seek(0)
    try:
        holder: dict[str, Any] = json.loads(file.read())
    except ValueError:
        return {}
    return holder


def _is_alive_elsewhere(holder: dict[str, Any]) -> bool:
    if not holder or holder["host"] == socket.gethostname():
        return False
    return time.time() - float(holder["heartbeat_s"]) < HEARTBEAT_STALE_S


def _refusal(path: Path, holder: dict[str, Any]) -> ConfigError:
    who = f"host {holder['host']}, process {holder['pid']}" if holder else "another process"
    seen = f", alive at {datetime.fromtimestamp(holder['heartbeat_s'], UTC):%Y-%m-%d %H:%M:%S} UTC" if holder else ""
    return ConfigError(
        key="results", value=str(path.parent), rule=f"a sweep is writing here ({who}{seen}); wait for it or end it"
    )
