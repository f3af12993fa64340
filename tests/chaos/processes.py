"""What runs on this machine, and what its shared memory holds."""

from __future__ import annotations

from pathlib import Path

import psutil


def actor_pids(kind: str) -> list[int]:
    """The processes of a kind of actor, by the title that Ray gives them."""
    titles = {each.pid: " ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])}
    return [pid for pid, title in titles.items() if title.startswith(f"ray::{kind}")]


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
