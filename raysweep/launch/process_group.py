"""The process group of a worker group: Ray Train's, over the interface that has each node's address."""

from __future__ import annotations

from typing import Any

import ray
from ray.train.torch import TorchConfig

from raysweep.launch.interface import use_interface_of_node


class GroupConfig(TorchConfig):  # type: ignore[misc]
    """Ray Train's process group; where it spans nodes, each rank is told its interface first.

    Ray itself chooses the address, that of rank 0's node, and a port that is free there.
    """

    @property
    def backend_cls(self) -> type:
        """Ray's hook."""
        return _OverNodes


class _OverNodes(TorchConfig().backend_cls):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Ray's hook, before any rank makes the process group."""
        if len(set(worker_group.execute(ray.util.get_node_ip_address))) > 1:
            worker_group.execute(use_interface_of_node)
        super().on_start(worker_group, backend_config)
