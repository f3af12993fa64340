"""What runs on this machine, and what its shared memory holds."""

from __future__ import annotations

from pathlib import Path

import psutil


def actor_pids(kind: str) -> list[int]:
    """The processes of a kind of actor, by the title that Ray gives them."""
    titles = {each.pid: " ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])}
    return [pid for pid, title in titles.items() if title.startswith(f"ray::{kind}")]


def shm_bytes() -> int:
    """Bytes in the files of this machine's shared memory."""
    return sum(path.stat().st_size for path in Path("/dev/shm").rglob("*") if path.is_file())
