"""Finds a model's block lists, checkpoints every k-th block, and counts what is recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

from raysweep.candidate import Candidate
from raysweep.errors import CheckpointMismatch, ConfigError, nearest_name

BlockList = nn.ModuleList | nn.Sequential


def find_block_lists(model: nn.Module, *, names: Sequence[str] = ()) -> list[BlockList]:
    """The lists of blocks: those that the user names, else the large ones whose items share one class.

    Without names, the outermost lists count that hold at least half as many parameters as the largest, so that an
    encoder and its decoder are both found, and a short list of adapters is not; and those whose items are of a class
    that transformers says not to split (`_no_split_modules`), however short.

    Raises:
        ConfigError: when a name leads to no list.
    """
    if names:
        return [_named_list(model, name) for name in names]
    found: list[tuple[str, BlockList]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if not inside and _is_block_list(module):
            found.append((name, module))
    largest = max((_parameters_in(module) for _, module in found), default=0)
    whole = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for _, module in found if 2 * _parameters_in(module) >= largest or type(module[0]).__name__ in whole]


def _named_list(model: nn.Module, name: str) -> BlockList:
    # Adapters put the user's model inside one of their own, under a longer name.
    lists = {
        known: module for known, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)
    }
    found = [module for known, module in lists.items() if known == name or known.endswith(f".{name}")]
    if len(found) != 1 or len(found[0]) == 0:
        rule = f"must name one list of modules; known: {', '.join(lists) or 'none'}"
        raise ConfigError(key="model.block_lists", value=name, rule=rule, nearest=nearest_name(name, lists))
    return found[0]


def _is_block_list(module: nn.Module) -> TypeGuard[BlockList]:
    if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) == 0:
        return False
    # A chain of blocks is a list; a chain of plain layers, or around one module, is not.
    if isinstance(module, nn.Sequential) and (len(module) == 1 or not any(True for _ in module[0].children())):
        return False
    return len({type(item) for item in module}) == 1 and any(True for _ in module[0].parameters())


def _parameters_in(module: nn.Module) -> int:
    # A parameter that stage 3 has sharded holds no elements of its own; DeepSpeed keeps its true size in ds_numel.
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in module.parameters())


def checkpoint_blocks(block_lists: Sequence[BlockList], interval: int) -> None:
    """Recompute block i of each list in backward where `interval` > 0 and i % `interval` == 0; in place.

    Raises:
        ConfigError: when `interval` > 0 and there is no list.
    """
    if interval == 0:
        return
    if not block_lists:
        rule = "no list of blocks was found in the model, so only 0 is possible; name the lists in model.block_lists"
        raise ConfigError(key="space.activation_checkpoint_interval", value=interval, rule=rule)
    for blocks in block_lists:
        for index in range(0, len(blocks), interval):
            blocks[index] = checkpoint_wrapper(blocks[index], checkpoint_impl=CheckpointImpl.NO_REENTRANT)


def compile_blocks(block_lists: Sequence[BlockList]) -> None:
    """Let `torch.compile` compile the forward pass of each block, in place; before the blocks are checkpointed.

    Blocks and not the whole model: equal ones share what was compiled for the first, what is recomputed is still a call
    that can be counted, and the hooks of stage 3 break the graph inside a block only.

    Raises:
        ConfigError: when there is no list.
    """
    if not block_lists:
        rule = "no list of blocks was found in the model, so there is none to compile; name the lists in block_lists"
        raise ConfigError(key="space.torch_compile", value=True, rule=rule)
    for blocks in block_lists:
        for block in blocks:
            compiled = torch.compile(block.forward)
            block.forward = compiled  # type: ignore[method-assign]


class BlockCounter:
    """Counts the calls of blocks, so that recomputation is seen and not believed.

    Attach it before the blocks are wrapped: it then counts forward passes and recomputations alike.
    """

    def __init__(self, block_lists: Sequence[BlockList]) -> None:
        self.block_counts = [len(blocks) for blocks in block_lists]
        self.calls = 0
        for blocks in block_lists:
            for block in blocks:
                # One that the user has wrapped already is called again inside its wrapper.
                called = getattr(block, "_checkpoint_wrapped_module", block)
                # A hook before the call: recomputation stops early, and never reaches the end of the block.
                called.register_forward_pre_hook(self._count)

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
