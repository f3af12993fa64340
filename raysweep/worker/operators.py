"""Builds DeepSpeed's compiled collective once a node, so that no build falls into a measurement or waits for ever."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import deepspeed
from deepspeed.accelerator import get_accelerator
from torch.utils import cpp_extension

from raysweep.worker.build_folder import build_folder, turn_to_build

SHARED_MEMORY_OP = "ShareMemCommBuilder"


def use_own_folder() -> Path:
    """Let PyTorch build in the folder of ours, with this environment's ninja; the folder."""
    folder = build_folder()
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    # An interpreter that was called by its path has not put its own folder, and so its ninja, on PATH.
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep)[:1]:
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    return folder


def build_operators(folder: Path) -> None:
    """Build, or load, the shared-memory collective in `folder`; the ranks of a node take turns."""
    _avoid_spaces(folder)
    with turn_to_build(folder):
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
