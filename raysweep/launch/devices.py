"""What a worker's device holds and can do, asked of the device."""

from __future__ import annotations

import os
from collections.abc import Mapping

import ray

ASK_TIMEOUT_S = 120


def device_memory_bytes(*, device: str, resources_per_worker: Mapping[str, float], world_size: int) -> int:
    """Bytes that one worker's device holds; on CPU the host's memory shared by the workers that fit on a node."""
    if device == "cuda":
        ask = ray.remote(_cuda_memory_bytes).options(num_cpus=0, num_gpus=resources_per_worker["GPU"])
        return int(ray.get(ask.remote(), timeout=ASK_TIMEOUT_S))
    cpus_per_worker = resources_per_worker.get("CPU") or 1.0
    shares = []
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus_per_worker:
            workers = min(world_size, int(node["Resources"]["CPU"] // cpus_per_worker))
            shares.append(int(node["Resources"]["memory"]) // workers)
    return min(shares)


def _cuda_memory_bytes() -> int:
    # On the worker only: the driver never touches CUDA.
    import torch

    return int(torch.cuda.mem_get_info()[1])


def unsupported_precision(*, device: str, precision: str, resources_per_worker: Mapping[str, float]) -> str:
    """Why training in a precision does not run on the workers' devices; empty where it does.

    A CUDA device is asked on a worker. What runs on a CPU is decided by PyTorch, so this process can try it.
    """
    if device == "cpu":
        return _tried(precision, "cpu")
    ask = ray.remote(_tried).options(num_cpus=0, num_gpus=resources_per_worker["GPU"])
    return str(ray.get(ask.remote(precision, "cuda"), timeout=ASK_TIMEOUT_S))


def _tried(precision: str, place: str) -> str:
    import torch

    name = torch.cuda.get_device_name() if place == "cuda" else "this CPU"
    # PyTorch emulates bf16 where a GPU lacks it: it runs, at a fraction of the speed.
    if place == "cuda" and precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return f"precision bf16 is not supported on {name}"
    if precision == "fp16" and (lacks := _fp16_lacks(place)):
        return f"precision fp16 is not supported on {name}: {lacks}"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
    try:
        weight = torch.ones(8, 8, dtype=dtype, device=place, requires_grad=True)
        torch.autograd.backward((weight @ weight).sum())
    except RuntimeError as error:
        return f"precision {precision} is not supported on {name}: {error}"
    return ""


def _fp16_lacks(place: str) -> str:
    """What DeepSpeed misses for fp16, where PyTorch itself would run it; empty where it trains.

    From `is_fp16_supported` of deepspeed/accelerator/cpu_accelerator.py and cuda_accelerator.py.
    """
    import torch

    if place == "cpu":
        supported = torch.ops.mkldnn._is_mkldnn_fp16_supported()
        return "" if supported else "DeepSpeed asks for a CPU with AVX512-FP16; bf16 and fp32 run"
    least = 6 if os.environ.get("DS_ALLOW_DEPRECATED_FP16") == "1" else 7
    major, minor = torch.cuda.get_device_capability()
    return "" if major >= least else f"DeepSpeed asks for compute capability {least}.0, it has {major}.{minor}"


def device_kind(device: str) -> str:
    """`cpu`, or the accelerators of the cluster as Ray calls them; `cuda` where it does not know them."""
    if device == "cpu":
        return device
    prefix = "accelerator_type:"
    resources = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
    return "+".join(sorted(name.removeprefix(prefix) for name in resources if name.startswith(prefix))) or device
