"""What runs on this machine, and what its shared memory holds."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def actor_pids(kind: str, *, under: int) -> list[int]:
    """The processes of a kind of actor below a process, by the title that Ray gives them; another sweep has its own."""
    found = []
    for process in psutil.Process(under).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(f"ray::{kind}"):
                found.append(process.pid)
    return found


def orphaned_shm_bytes() -> int:
    """Bytes in files of this machine's shared memory that no living process has mapped or open."""
    held = "".join(_maps(pid) for pid in psutil.pids())
    files = [path for path in Path("/dev/shm").rglob("*") if path.is_file() and str(path) not in held]
    return sum(path.stat().st_size for path in files)


def _maps(pid: int) -> str:
    try:
        opened = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
        return Path(f"/proc/{pid}/maps").read_text() + "".join(opened)
    except OSError:  # gone by now
        return ""
