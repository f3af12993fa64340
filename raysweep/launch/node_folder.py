"""The folder that a sweep has on each node for its temporary files, and what it tells of a process that is gone."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

PREFIX = "raysweep-sweep-"
WORDS_READ = 20_000
SIGNALS = {
    "Fatal Python error: Segmentation fault": signal.SIGSEGV,
    "Fatal Python error: Aborted": signal.SIGABRT,
    "Fatal Python error: Bus error": signal.SIGBUS,
    "Fatal Python error: Floating": signal.SIGFPE,
    "Fatal Python error: Illegal instruction": signal.SIGILL,
}
"""How faulthandler begins, and the signal that it was called for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """What a process left behind when a fatal signal ended it."""

    exit_signal: int
    stack: str


class NodeFolder:
    """A sweep's folder on this node, as any process of the sweep sees it.

    Its owner holds a lock on it, which the kernel lets go of when the owner dies: a folder whose lock is free belongs
    to a sweep that is over.
    """

    def __init__(self, sweep_id: str) -> None:
        self.sweep_id = sweep_id
        self.path = Path(tempfile.gettempdir()) / f"{PREFIX}{sweep_id}"

    def temporary(self) -> str:
        """A new folder inside; it goes with the sweep's."""
        self.path.mkdir(exist_ok=True)
        return tempfile.mkdtemp(dir=self.path)

    def own(self) -> TextIO:
        """Make the folder and lock it for as long as the file that is returned is open.

        Raises:
            BlockingIOError: when another process owns it.
        """
        self.path.mkdir(exist_ok=True)
        lock = (self.path / "owner").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise
        return lock

    @contextlib.contextmanager
    def held(self) -> Iterator[str]:
        """Own the folder for the length of a block, and remove it then; its path."""
        with self.own():
            try:
                yield str(self.path)
            finally:
                self.remove()

    def leave_last_words(self) -> None:
        """Have this process write its stack to a file of its own when a fatal signal ends it."""
        self.path.mkdir(exist_ok=True)
        # Only faulthandler writes to this file, and only then: that it has content is the sign, whatever logs say.
        faulthandler.enable(self._words_of(os.getpid()).open("w"))

    def last_words(self, pid: int) -> LastWords | None:
        """What a dead process left to say; None where no fatal signal of its own ended it."""
        with contextlib.suppress(FileNotFoundError):
            text = self._words_of(pid).read_text(errors="replace")[:WORDS_READ]
            for beginning, number in SIGNALS.items():
                if text.startswith(beginning):
                    return LastWords(exit_signal=int(number), stack=text)
        return None

    def _words_of(self, pid: int) -> Path:
        return self.path / f"{pid}.last-words"

    def note_shared_memory(self, path: Path) -> None:
        """Remember a file of shared memory that a library will leave behind; `remove` deletes it."""
        self.path.mkdir(exist_ok=True)
        with (self.path / "shared-memory").open("a") as notes:
            notes.write(f"{path}\n")

    def remove(self) -> None:
        """Delete the folder, and the shared memory that was noted in it."""
        with contextlib.suppress(FileNotFoundError):
            for line in (self.path / "shared-memory").read_text().splitlines():
                Path(line).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def abandoned_folders() -> Iterator[NodeFolder]:
    """Folders of sweeps that are over and could not tidy up; each is locked while it is looked at."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        folder = NodeFolder(path.name.removeprefix(PREFIX))
        # Without an owner it is being made; another user's cannot be opened, a running sweep's cannot be locked.
        with contextlib.suppress(OSError):
            if (path / "owner").exists():
                with folder.own():
                    yield folder
