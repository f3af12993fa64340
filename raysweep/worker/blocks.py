"""Finds a model's block lists, checkpoints every k-th block, and counts what is recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

from raysweep.candidate import Candidate
from raysweep.errors import CheckpointMismatch


def find_block_lists(model: nn.Module) -> list[nn.ModuleList]:
    """The lists of transformer blocks: outermost `ModuleList`s whose items share one class and have parameters.

    A list counts as blocks where it holds at least half as many parameters as the largest such list, so that an
    encoder and its decoder are both found, and a short list of adapters is not.
    """
    found: list[tuple[str, nn.ModuleList]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if not inside and _is_block_list(module):
            found.append((name, module))
    sizes = [_parameters_in(module) for _, module in found]
    return [module for (_, module), size in zip(found, sizes, strict=True) if 2 * size >= max(sizes)]


def _is_block_list(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.ModuleList)
        and len(module) > 0
        and len({type(item) for item in module}) == 1
        and any(True for _ in module[0].parameters())
    )


def _parameters_in(module: nn.Module) -> int:
    # A parameter that stage 3 has sharded holds no elements of its own; DeepSpeed keeps its true size in ds_numel.
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in module.parameters())


def checkpoint_blocks(block_lists: Sequence[nn.ModuleList], interval: int) -> None:
    """Recompute block i of each list in backward where `interval` > 0 and i % `interval` == 0; in place."""
    if interval == 0:
        return
    for blocks in block_lists:
        for index in range(0, len(blocks), interval):
            blocks[index] = checkpoint_wrapper(blocks[index], checkpoint_impl=CheckpointImpl.NO_REENTRANT)


class BlockCounter:
    """Counts the calls of blocks, so that recomputation is seen and not believed.

    Attach it before the blocks are wrapped: it then counts forward passes and recomputations alike.
    """

    def __init__(self, block_lists: Sequence[nn.ModuleList]) -> None:
        self.block_counts = [len(blocks) for blocks in block_lists]
        self.calls = 0
        for blocks in block_lists:
            for block in blocks:
                # A hook before the call: recomputation stops early, and never reaches the end of the block.
                block.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def check(self, candidate: Candidate, *, micro_steps: int) -> int:
        """Blocks recomputed in one micro-step, compared with what the candidate asks for.

        Raises:
            CheckpointMismatch: when more or fewer were recomputed.
        """
        expected = sum(candidate.recomputed_blocks(count) for count in self.block_counts)
        counted = self.calls / micro_steps - sum(self.block_counts)
        if counted != expected:
            raise CheckpointMismatch(
                expected=expected, counted=round(counted, 3), interval=candidate.activation_checkpoint_interval
            )
        return expected
