"""The folder in which PyTorch builds operators for raysweep, and the locks that killed builds leave in it."""

from __future__ import annotations

import fcntl
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPERATORS_FOLDER = "~/.cache/raysweep/torch_extensions"


def build_folder() -> Path:
    """The folder, one an environment: PyTorch builds anew when other flags, or another ninja, meet the same one."""
    environment_id = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
    folder = Path(OPERATORS_FOLDER).expanduser() / environment_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def turn_to_build(folder: Path, *, wait: bool = True) -> Iterator[list[Path]]:
    """Let one process of this node build at a time; gives the stale locks that were found and removed.

    PyTorch guards a build by a file named `lock`, which a killed build leaves behind, and on which every later one
    waits without a word. In a folder that only raysweep builds in, and under a lock that the kernel takes back when
    its holder dies, such a file is always a leftover.

    Raises:
        BlockingIOError: when another process is building and `wait` is off.
    """
    with (folder / "raysweep.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        stale = list(folder.glob("*/lock"))
        for lock in stale:
            lock.unlink()
        yield stale
