"""How weights come into being: in their final dtype on the training device, sharded and yet equal at stage 3."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import deepspeed
import torch

# Activation checkpointing imports it on first use. Inside `zero.Init`, which replaces torch.Tensor.__new__, that fails.
import torch._dynamo
from torch import nn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@contextmanager
def birthplace(config: Mapping[str, Any], *, dtype: torch.dtype, place: torch.device) -> Iterator[None]:
    """Modules built inside have weights of `dtype` on `place`; where `config` asks for stage 3, sharded at once.

    Whatever the user's code imports must be imported before, because stage 3 replaces parts of torch meanwhile.
    """
    dtype_before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.device(place))
            if config.get("zero_optimization", {}).get("stage", 0) == 3:
                stack.enter_context(_gathering_initialisers())
                stack.enter_context(deepspeed.zero.Init(config_dict_or_path=dict(config)))
            yield
    finally:
        torch.set_default_dtype(dtype_before)


def gathered(parameters: Iterable[torch.Tensor]) -> AbstractContextManager[Any]:
    """Sharded parameters are whole inside, and take rank 0's values at the end; those that are whole stay as they are.

    Code inside runs on every rank, so that the ranks' random streams stay in step with each other and with those of
    the other stages.
    """
    return deepspeed.zero.GatheredParameters(
        [parameter for parameter in parameters if _is_away(parameter)], modifier_rank=0
    )


def _is_away(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "ds_id") and tensor.numel() != tensor.ds_numel  # type: ignore[attr-defined]


@contextmanager
def _gathering_initialisers() -> Iterator[None]:
    """`torch.nn.init` works on sharded parameters inside.

    A parameter is sharded as soon as its module's constructor ends. What then sets it anew, as peft does for its
    adapters, would otherwise write into an empty tensor, without a word.
    """
    originals = {name: function for name, function in vars(nn.init).items() if _is_initialiser(name, function)}
    for name, function in originals.items():
        setattr(nn.init, name, _on_whole_tensor(function))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(nn.init, name, function)


def _is_initialiser(name: str, value: Any) -> bool:
    return callable(value) and name.endswith("_") and not name.startswith("_")


def _on_whole_tensor(initialiser: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(initialiser)
    def initialise(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _is_away(tensor):
            return initialiser(tensor, *args, **kwargs)
        with gathered([tensor]):
            return initialiser(tensor, *args, **kwargs)

    return initialise
