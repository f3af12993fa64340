"""Builds a model once without its weights, counts it and weighs its passes; run as a subprocess of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raysweep.errors import ConfigError
from raysweep.estimate.fake_activations import measure_activations
from raysweep.model_facts import BlockListFacts, ModelFacts
from raysweep.model_schema import FUNCTION_KINDS, LOOP_KINDS
from raysweep.serde import from_dict, to_dict
from raysweep.worker.blocks import BlockList, find_block_lists
from raysweep.worker.model import build_model
from raysweep.worker.user_loops import open_loop
from raysweep.workload import Workload

EQUAL_BLOCKS = 1.5
"""Largest over smallest block of a list up to which its blocks count as equal; wider ones are stages of a pyramid."""

MOST_CHARACTERS = 300
"""Of a foreign error's text."""


def count_model(section: Mapping[str, Any]) -> ModelFacts:
    """Build the model of a model section without its weights, and count it."""
    model = _built(section)
    lists = _named(model, find_block_lists(model, names=section.get("block_lists", ())))
    before, behind = _outside_blocks(model, lists)
    parameters = list(model.parameters())
    return ModelFacts(
        parameters=_elements(parameters),
        trainable_parameters=_elements([parameter for parameter in parameters if parameter.requires_grad]),
        largest_parameter=max((parameter.numel() for parameter in parameters), default=0),
        embedding_parameters=before,
        head_parameters=behind,
        block_lists=tuple(
            BlockListFacts(
                name=name,
                count=len(blocks),
                parameters_per_block=round(_elements(blocks.parameters()) / len(blocks)),
            )
            for name, blocks in lists.items()
        ),
        tied=_tied(model),
        hidden=_hidden(section, model, list(lists.values())),
        vocab_size=_from_config(model, "vocab_size") if section.get("head") != "image_classification" else None,
        positions=_from_config(model, "max_position_embeddings"),
        tokens_per_sample=_patches(model) if section.get("head") == "image_classification" else None,
        versions={name: metadata.version(name) for name in ("torch", "transformers", "peft") if name in sys.modules},
    )


def _built(section: Mapping[str, Any]) -> nn.Module:
    if section["kind"] in LOOP_KINDS:
        # A loop may ask for its rank before it makes its model.
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        with torch.device("meta"):
            return open_loop(section).model()
    # Attention has no parameters, and this machine need not have the kernels that the workers have.
    plain = {**section, "attn_implementation": None} if section["kind"] == "hf" else section
    try:
        with torch.device("meta"):
            return build_model(plain)
    except (NotImplementedError, RuntimeError):
        if section["kind"] != "factory":
            raise
        # Code that looks at numbers while it builds fails on the meta device, and works in a worker.
        return build_model(section)


def _elements(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _named(model: nn.Module, lists: Sequence[BlockList]) -> dict[str, BlockList]:
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(blocks)]: blocks for blocks in lists}


def _outside_blocks(model: nn.Module, lists: Mapping[str, BlockList]) -> tuple[int, int]:
    """Elements outside the blocks: those registered before the first block, and those behind it."""
    before, behind, has_passed = 0, 0, False
    for name, parameter in model.named_parameters():
        if any(name.startswith(f"{blocks}.") for blocks in lists):
            has_passed = True
        elif has_passed:
            behind += parameter.numel()
        else:
            before += parameter.numel()
    return before, behind


def _tied(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(shared) for shared in names.values() if len(shared) > 1)


def _hidden(section: Mapping[str, Any], model: nn.Module, lists: Sequence[BlockList]) -> int | None:
    """The hidden size, where the activations of a sample follow from it: equal blocks, all of them in backward.

    A factory and a loop make their own batches, so the tokens of a sample are not known; blocks without a gradient may
    save nothing; and an image model without one patch size has as many token counts as stages.
    """
    is_foreign_data = section["kind"] in FUNCTION_KINDS
    is_pyramid = section.get("head") == "image_classification" and _patches(model) is None
    if is_foreign_data or is_pyramid or not lists or not all(_are_equal_and_trained(blocks) for blocks in lists):
        return None
    return _from_config(model, "hidden_size")


def _are_equal_and_trained(blocks: BlockList) -> bool:
    sizes = [_elements(block.parameters()) for block in blocks]
    is_trained = all(any(parameter.requires_grad for parameter in block.parameters()) for block in blocks)
    return is_trained and max(sizes) <= EQUAL_BLOCKS * min(sizes)


def _from_config(model: nn.Module, name: str) -> int | None:
    value = getattr(getattr(model, "config", None), name, None)
    return value if isinstance(value, int) else None


def _patches(model: nn.Module) -> int | None:
    """Patches of an image: (size // patch)^2; None where the config does not say both."""
    image_size, patch_size = _from_config(model, "image_size"), _from_config(model, "patch_size")
    return (image_size // patch_size) ** 2 if image_size and patch_size else None


def main() -> None:
    """Read `section` and `workload` or null (JSON) from standard input; write `facts` or `error` (JSON) as a line.

    Where there is a workload, its activations are measured then, and the facts are written once more with them.
    """
    asked = json.load(sys.stdin)
    section = asked["section"]
    try:
        facts = count_model(section)
        print(json.dumps({"facts": to_dict(facts)}), flush=True)
    except ConfigError as error:
        print(json.dumps({"error": error.data}))
        return
    except Exception as error:
        # Whatever the user's code raises is an answer here, too.
        rule = f"cannot be built: {_in_a_line(error)}"
        print(json.dumps({"error": {"key": "model", "value": section["kind"], "rule": rule}}))
        return
    if asked["workload"] is not None:
        print(json.dumps({"facts": to_dict(with_activations(facts, from_dict(Workload, asked["workload"])))}))


def with_activations(facts: ModelFacts, workload: Workload) -> ModelFacts:
    """The facts with what a pass over the workload's batches holds, or why that is not known."""
    if workload.model["kind"] in LOOP_KINDS:
        return replace(facts, unmeasured="a training loop brings its own batches")
    try:
        return replace(facts, activations=measure_activations(workload))
    except Exception as error:
        # The user's code, or torch, whose fake tensors have no numbers.
        return replace(facts, unmeasured=_in_a_line(error))


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MOST_CHARACTERS]}"


if __name__ == "__main__":
    main()
