"""How workers are spread over nodes, for frameworks that are told so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Nodes, and workers on each."""

    nodes: int
    workers_per_node: int

    @property
    def world_size(self) -> int:
        """All workers."""
        return self.nodes * self.workers_per_node


def place(world_size: int, *, measured_nodes: Sequence[str]) -> Placement:
    """Spread workers as they were measured: full nodes of the same number of workers.

    Where that number does not divide `world_size`, the largest smaller one that does is taken.

    Args:
        world_size: workers to place.
        measured_nodes: the node of each worker, in rank order.
    """
    most = max(Counter(measured_nodes).values(), default=world_size)
    per_node = next(number for number in range(min(most, world_size), 0, -1) if world_size % number == 0)
    return Placement(nodes=world_size // per_node, workers_per_node=per_node)
