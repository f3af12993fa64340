"""Writes to where the results will go, reads it back and takes it away again."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from raysweep.errors import ConfigError
from raysweep.preflight.finding import Finding
from raysweep.results.store import open_filesystem, write_whole
from raysweep.units import MIB, format_bytes

LEAST_FREE_BYTES = 100 * MIB


def check_results(results: str) -> list[Finding]:
    """What is wrong with a results folder or URI; a folder that is not there yet is not made.

    Args:
        results: as the sweep file has it.
    """
    try:
        return _check_uri(results) if "://" in results else _check_folder(Path(results))
    except (OSError, ConfigError) as error:
        return [Finding(place="results", problem=f"{results}: {error}", remedy="give another folder or URI")]


def _check_uri(uri: str) -> list[Finding]:
    filesystem, folder = open_filesystem(uri)
    path, content = f"{folder}/.raysweep-check-{uuid.uuid4().hex}", b"written and read back"
    write_whole(filesystem, path, content)
    with filesystem.open_input_stream(path) as stream:
        found = stream.read()
    filesystem.delete_file(path)
    if found == content:
        return []
    return [Finding(place="results", problem=f"{uri} gives back other bytes than were written", remedy="do not use it")]


def _check_folder(folder: Path) -> list[Finding]:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK):
        return [Finding(place="results", problem=f"{there} may not be written", remedy="give another folder")]
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < LEAST_FREE_BYTES:
        problem = f"{there} has {format_bytes(free_bytes)} left; {format_bytes(LEAST_FREE_BYTES)} is the least"
        return [Finding(place="results", problem=problem, remedy="make room, or give another folder")]
    return []
