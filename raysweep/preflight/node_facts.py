"""What a node says of itself: versions, devices, memory, space, compiler; runs on that node, and imports no torch."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil

from raysweep.preflight.finding import NodeFacts
from raysweep.units import MIB
from raysweep.worker.build_folder import build_folder

PACKAGES = ("ray", "torch", "deepspeed")
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
SHARED_MEMORY = "/dev/shm"
STEERING = ("NCCL_", "GLOO_", "TORCH_NCCL_", "http_proxy", "https_proxy", "no_proxy", "all_proxy")
ASK_DEVICES_WITHIN_S = 10
_DEVICE_FIELDS = "index,name,memory.total,memory.used,driver_version"


def gather(*, address: str, data: Mapping[str, object], extra_packages: tuple[str, ...] = ()) -> NodeFacts:
    """The facts of this node.

    Args:
        address: as Ray names the node.
        data: the sweep's data section.
        extra_packages: that the model needs beside PACKAGES.
    """
    return NodeFacts(
        address=address,
        host=socket.gethostname(),
        versions=dict(_versions(extra_packages)),
        devices=list(_devices()),
        memory_bytes=memory_limit_bytes(psutil.virtual_memory().total, _limits()),
        available_bytes=psutil.virtual_memory().available,
        free_bytes=dict(_free()),
        compiler=next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), ""),
        operator_is_built=any(build_folder().glob("*/*.so")),
        data_files=data_files(data),
        variables={key: value for key, value in os.environ.items() if key.startswith(STEERING)},
    )


def _versions(extra_packages: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    yield "python", ".".join(map(str, sys.version_info[:3]))
    for package in (*PACKAGES, *extra_packages):
        yield package, _installed(package)
    yield "cuda", _cuda_of_torch()
    yield "nccl", next((found for name in NCCL_PACKAGES if (found := _installed(name)) != "not installed"), "none")


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cuda_of_torch() -> str:
    """What torch was built for, as its own version file has it: to import torch would take seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "none"
    with contextlib.suppress(OSError):
        found = re.search(r"^cuda\b[^=]*= *'([^']*)'", Path(spec.origin).with_name("version.py").read_text(), re.M)
        return found.group(1) if found else "none"
    return "none"


def _devices() -> Iterator[dict[str, str | int]]:
    """NVIDIA devices by nvidia-smi, which ships with the driver; none where it is not there."""
    if shutil.which("nvidia-smi") is None:
        return
    command = ["nvidia-smi", f"--query-gpu={_DEVICE_FIELDS}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run(command, capture_output=True, text=True, timeout=ASK_DEVICES_WITHIN_S, check=True)
        yield from read_devices(printed.stdout)


def read_devices(printed: str) -> Iterator[dict[str, str | int]]:
    """Devices of what nvidia-smi prints as CSV without header and units; it counts memory in MiB.

    Fields that it answers with a word, such as [N/A] for the memory of some virtual devices, make the device left out.
    """
    for line in printed.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 5 and fields[2].isdigit() and fields[3].isdigit():
            yield {
                "index": int(fields[0]),
                "name": fields[1],
                "total_bytes": int(fields[2]) * MIB,
                "used_bytes": int(fields[3]) * MIB,
                "driver": fields[4],
            }


def memory_limit_bytes(total_bytes: int, limits: Iterator[str]) -> int:
    """The host's memory, or a container's limit where that is less; `max` and absurd numbers are no limit."""
    found = [int(limit) for limit in limits if limit.strip().isdigit()]
    return min([total_bytes, *found])


def _limits() -> Iterator[str]:
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError):
            yield Path(path).read_text().strip()


def _free() -> Iterator[tuple[str, int]]:
    for folder in (tempfile.gettempdir(), str(build_folder()), SHARED_MEMORY):
        with contextlib.suppress(OSError):
            yield folder, shutil.disk_usage(folder).free


def data_files(data: Mapping[str, object]) -> int | None:
    """How many files this node finds of a sweep's text; None where its data is not in files that are named."""
    path = data.get("path")
    if data.get("kind") != "text" or not isinstance(path, str) or path == "stdlib":
        return None
    if os.path.isdir(path):
        return sum(each.is_file() for each in Path(path).rglob("*"))
    return len(glob.glob(path, recursive=True))
