"""Builds DeepSpeed's compiled collective once a node, so that no build falls into a measurement or waits for ever."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

import deepspeed
from deepspeed.accelerator import get_accelerator
from torch.utils import cpp_extension

SHARED_MEMORY_OP = "ShareMemCommBuilder"


def build_operators(folder: Path) -> None:
    """Build, or load, the shared-memory collective in `folder`; the ranks of a node take turns.

    PyTorch guards a build by a file named `lock`, which a killed build leaves behind, and on which every later one
    waits without a word. In a folder that only raysweep builds in, and under a lock that the kernel takes back when
    its holder dies, such a file is always a leftover.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _avoid_spaces(folder)
    with (folder / "raysweep.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for leftover in folder.glob("*/lock"):
            leftover.unlink()
        builder = get_accelerator().create_op_builder(SHARED_MEMORY_OP)
        if builder is not None and deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
            builder.load(verbose=False)


def _avoid_spaces(folder: Path) -> None:
    """Let the linker find PyTorch under a path with spaces: PyTorch hands its folder to the linker without quotes."""
    libraries = Path(cpp_extension.TORCH_LIB_PATH)
    if " " not in str(libraries):
        return
    link = folder / "torch_libraries"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(libraries)
    cpp_extension.TORCH_LIB_PATH = str(link)
