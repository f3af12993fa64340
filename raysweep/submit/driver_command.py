"""The shell command that runs a sweep where it was sent: it goes on where results are there, and starts otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from raysweep.errors import ConfigError
from raysweep.results.paths import JOURNAL, local_folder
from raysweep.sweep_file import Sweep

MODULE = "raysweep.cli.main"


def driver_command(*, python: Sequence[str], sweep: str, address: str, results: str, folder: str) -> str:
    """One line for `sh`.

    Args:
        python: the interpreter, in words.
        sweep: the sweep file, as it is named there.
        address: the Ray cluster; text for the shell, so that it may hold a variable.
        results: folder or URI of the results; text for the shell.
        folder: the folder of the driver's own disk that holds the journal; text for the shell.
    """
    run = shlex.join([*python, "-m", MODULE, "run", sweep])
    return (
        f"if [ -e {folder}/{JOURNAL} ]; then set -- --resume; else set --; fi; "
        f'exec {run} --address {address} --results {results} --yes "$@"'
    )


def in_shell(results: str) -> dict[str, str]:
    """`results` and `folder` of `driver_command` for a folder or URI that is named in full."""
    return {"results": shlex.quote(results), "folder": shlex.quote(local_folder(results))}


def sweep_inside(sweep: Sweep, working_dir: Path) -> str:
    """The sweep file's path below a working directory.

    Raises:
        ConfigError: when it lies elsewhere, so that it would not be sent.
    """
    path = sweep.path.resolve()
    if not path.is_relative_to(working_dir.resolve()):
        raise ConfigError(
            key="working_dir",
            value=str(working_dir),
            rule=f"does not hold the sweep file {path}, so it would not be sent",
            nearest=str(path.parent),
        )
    return path.relative_to(working_dir.resolve()).as_posix()


def is_uri(results: str) -> bool:
    """Whether results go to an object store, which is the same from everywhere, and not to a folder."""
    return "://" in results
