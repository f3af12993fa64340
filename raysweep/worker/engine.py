"""Builds a candidate's DeepSpeed engine, repairs what its constructor does wrong, and takes it down without a trace."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero import parameter_offload, partition_parameters, partitioned_param_coordinator
from deepspeed.utils import groups

from raysweep.trial import LaunchRequest
from raysweep.worker.birth import DTYPES, birthplace
from raysweep.worker.blocks import BlockCounter, checkpoint_blocks, compile_blocks, find_block_lists
from raysweep.worker.model import Blueprint

STEPPING_CONSTRUCTORS = ("FP16_UnfusedOptimizer", "FP16_Optimizer")
"""Optimizer wrappers of DeepSpeed that take a step on zero gradients when they are made (stage 0, bf16 and fp16)."""


def build_engine(request: LaunchRequest, blueprint: Blueprint, place: torch.device) -> tuple[Any, BlockCounter]:
    """The engine of a candidate, ready for its first step, and the counter on its blocks.

    The weights are born in their final dtype on the training device, at stage 3 sharded as they are made, from the
    same seed at every stage and rank. Frozen weights stay out of the optimizer.

    Raises:
        ConfigError: when blocks are to be recomputed or compiled and none are found, or the user's names lead to none.
    """
    config = copy.deepcopy(dict(request.ds_config))
    torch.manual_seed(request.workload.seed)
    with birthplace(config, dtype=DTYPES[request.workload.precision], place=place):
        model = blueprint.build()
    block_lists = find_block_lists(model, names=blueprint.block_lists)
    counter = BlockCounter(block_lists)
    if request.candidate.torch_compile:
        compile_blocks(block_lists)
    checkpoint_blocks(block_lists, request.candidate.activation_checkpoint_interval)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trainable, config=config)
    undo_constructor_step(engine)
    return engine, counter


def undo_constructor_step(engine: Any) -> bool:
    """Take back the step that DeepSpeed's FP16 optimizer wrappers make in their constructor; whether there was one.

    `initialize_optimizer_states` (deepspeed/runtime/fp16/unfused_optimizer.py, fused_optimizer.py) steps once on
    zero gradients. AdamW then corrects its first real update as if it were the second, about 26 % too small, and
    its weight decay has moved the fp32 masters away from the model's weights. In fp16 stage 0 still trains
    differently: DeepSpeed 0.19.8 divides its gradients by a loss scale that it never applied (DeepSpeed pull request
    8393). That is what the exported config would do, too, so it is left to be seen in the losses.
    """
    wrapper = engine.optimizer
    if type(wrapper).__name__ not in STEPPING_CONSTRUCTORS:
        return False
    for holder in (*wrapper.optimizer.state.values(), *wrapper.optimizer.param_groups):
        if "step" in holder:
            holder["step"] = holder["step"] * 0
    with torch.no_grad():
        for master, weight in _masters_and_weights(wrapper):
            master.copy_(weight)
    return True


def _masters_and_weights(wrapper: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if hasattr(wrapper, "fp32_groups_flat"):
        yield from zip(wrapper.fp32_groups_flat, wrapper.fp16_groups_flat, strict=True)
        return
    for masters, weights in zip(wrapper.fp32_groups, wrapper.fp16_groups, strict=True):
        yield from zip(masters, weights, strict=True)


def _restore_linear() -> None:
    patcher = partition_parameters.InsertPostInitMethodToModuleSubClasses
    torch.nn.functional.linear = getattr(patcher, "linear_bk", torch.nn.functional.linear)


def clear_stage3_globals() -> bool:
    """Undo what a stage 3 engine leaves in the process; False where DeepSpeed renamed one of the holders.

    `FWD_MODULE_STACK` keeps modules that early-stopped recomputation never pops, and an unbounded cache on
    `__params_to_release` keeps their coordinators. `zero.Init` also leaves its own `torch.nn.functional.linear` in
    place, under which every later candidate of any stage would train, in other last bits and at another speed.
    """
    _restore_linear()
    # hpZ's group: an engine refuses to be made while a former one's is there.
    if getattr(groups, "_ZERO_PARAM_INTRA_PARALLEL_GROUP", None) is not None:
        groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    stack = getattr(parameter_offload, "FWD_MODULE_STACK", None)
    coordinator = getattr(partitioned_param_coordinator, "PartitionedParameterCoordinator", None)
    method = getattr(coordinator, "_PartitionedParameterCoordinator__params_to_release", None)
    # A profiling decorator lies over the cached function: the cache is in its closure.
    holders = [method, *(cell.cell_contents for cell in getattr(method, "__closure__", None) or ())]
    clear = next((holder.cache_clear for holder in holders if hasattr(holder, "cache_clear")), None)
    if stack is not None:
        stack.clear()
    if clear is not None:
        clear()
    return stack is not None and clear is not None
