"""What a worker's device holds, asked of the cluster: the base of a memory budget of `auto`."""

from __future__ import annotations

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
