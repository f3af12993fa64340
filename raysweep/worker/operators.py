"""Builds DeepSpeed's compiled collective once a node, so that no build falls into a measurement or waits for ever."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
from pathlib import Path

import deepspeed
from deepspeed.accelerator import get_accelerator
from torch.utils import cpp_extension

SHARED_MEMORY_OP = "ShareMemCommBuilder"
OPERATORS_FOLDER = "~/.cache/raysweep/torch_extensions"


def use_own_folder() -> Path:
    """Let PyTorch build in a folder of ours, one an environment, with this environment's ninja; the folder.

    PyTorch builds anew when other compiler flags, or another ninja, meet the same folder.
    """
    environment_id = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
    folder = Path(OPERATORS_FOLDER).expanduser() / environment_id
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    # An interpreter that was called by its path has not put its own folder, and so its ninja, on PATH.
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep)[:1]:
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    return folder


def build_operators(folder: Path) -> None:
    """Build, or load, the shared-memory collective in `folder`; the ranks of a node take turns.

    PyTorch guards a build by a file named `lock`, which a killed build leaves behind, and on which every later one
    waits without a word. In a folder that only raysweep builds in, and under a lock that the kernel takes back when
    its holder dies, such a file is always a leftover.
    """
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
