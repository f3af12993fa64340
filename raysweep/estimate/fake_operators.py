"""Lists the operators that a model's code calls, traced or run, with the shapes that they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from raysweep.fidelity import OF_THE_MODEL
from raysweep.worker.tracker import LiveBytesTracker


class OperatorList:
    """Operators of forward and backward, until it is closed."""

    def __init__(self) -> None:
        self.operators: list[str] = []
        self.is_open = True

    def add(self, phase: str, func: Any, result: Any) -> None:
        """An operator was called in a phase."""
        if self.is_open and phase in OF_THE_MODEL and func.namespace != "prim":
            shapes = [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            self.operators.append(f"{func} {shapes}")


class ListingTracker(LiveBytesTracker):  # type: ignore[no-untyped-call]
    """Live bytes of real tensors, and the operators that made them."""

    def __init__(self, *, rank: int) -> None:
        super().__init__(rank=rank)
        self.listed = OperatorList()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.listed.add(self.phase, func, result)
        return result
