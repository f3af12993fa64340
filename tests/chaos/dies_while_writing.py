"""`raysweep`, ended by SIGKILL when half of the third launch's row is in the journal."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from io import FileIO

from raysweep.cli.main import main
from raysweep.results import journal


def dying(write_all: Callable[[FileIO, bytes], None], *, at_row: int) -> Callable[[FileIO, bytes], None]:
    """The journal's writer, which does not live to finish a row."""
    rows = itertools.count(1)

    def write(file: FileIO, content: bytes) -> None:
        if content.startswith(b'{"kind":"measurement"') and next(rows) == at_row:
            write_all(file, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write_all(file, content)

    return write


journal._write_all = dying(journal._write_all, at_row=3)
main()
