"""Brings a folder through a job's log: the command that prints it there, and how it is unpacked here."""

from __future__ import annotations

import base64
import io
import shlex
import tarfile
from pathlib import Path

from raysweep.errors import PreflightError
from raysweep.submit import print_archive
from raysweep.submit.print_archive import BEGIN, END


def printing_command(python: str, folder: str) -> str:
    """A line for `sh`; `folder` is text for the shell. It needs no raysweep there: a package may be gone by then."""
    source = Path(print_archive.__file__).read_text(encoding="utf-8")
    return f"{shlex.quote(python)} -c {shlex.quote(source)} {folder}"


def unpack_from_log(log: str, folder: Path) -> None:
    """Unpack what a log holds between the marks.

    Raises:
        PreflightError: when it holds nothing, or not all of it.
    """
    # The log may repeat the command with its source, which names the marks, too.
    _, begun, rest = log.rpartition(f"\n{BEGIN}\n")
    encoded, ended, _ = rest.partition(END)
    if not (begun and ended):
        raise PreflightError(message="the archive of the results did not arrive whole; fetch again")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(encoded))) as archive:
        archive.extractall(folder, filter="data")
