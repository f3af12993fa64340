"""Builds DeepSpeed's compiled collective once a node, so that no build falls into a measurement or waits for ever."""

from __future__ import annotations

import fcntl
from pathlib import Path

import deepspeed
from deepspeed.accelerator import get_accelerator

SHARED_MEMORY_OP = "ShareMemCommBuilder"


def build_operators(folder: Path) -> None:
    """Build, or load, the shared-memory collective in `folder`; the ranks of a node take turns.

    PyTorch guards a build by a file named `lock`, which a killed build leaves behind, and on which every later one
    waits without a word. In a folder that only raysweep builds in, and under a lock that the kernel takes back when
    its holder dies, such a file is always a leftover.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "raysweep.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for leftover in folder.glob("*/lock"):
            leftover.unlink()
        builder = get_accelerator().create_op_builder(SHARED_MEMORY_OP)
        if builder is not None and deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
            builder.load(verbose=False)
