"""Constraints between axes: expressions over a candidate's values that must hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simpleeval import EvalWithCompoundTypes, InvalidExpression, NameNotDefined

from raysweep.candidate import Candidate
from raysweep.errors import ConfigError, nearest_name

OFFLOAD_KEY = "zero_optimization.offload_optimizer.device"
HPZ_KEY = "zero_optimization.zero_hpz_partition_size"
FUNCTIONS = {"min": min, "max": max, "abs": abs}


def names_of(
    candidate: Candidate, *, world_size: int, global_batch_size: int, axes: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """What an expression may name: the axes, workers and batch, and DeepSpeed's keys of `axes` by their dotted path."""
    names: dict[str, Any] = {
        "zero_stage": candidate.zero_stage,
        "activation_checkpoint_interval": candidate.activation_checkpoint_interval,
        "micro_batch_size_per_gpu": candidate.micro_batch_size_per_gpu,
        "gradient_accumulation_steps": candidate.gradient_accumulation_steps,
        "offload_optimizer": candidate.deepspeed.get(OFFLOAD_KEY, "none"),
        "zero_hpz_partition_size": candidate.deepspeed.get(HPZ_KEY, 1),
        "attn_implementation": candidate.attn_implementation,
        "torch_compile": candidate.torch_compile,
        "world_size": world_size,
        "global_batch_size": global_batch_size,
    }
    for path in axes:
        *sections, key = path.split(".")
        inner = names
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = candidate.deepspeed[path]
    return names


def holds(expression: str, names: Mapping[str, Any]) -> bool:
    """Whether an expression is true of a candidate. Nothing can be called in it but min, max and abs.

    Raises:
        ConfigError: when it is no expression, names what is not there, or gives neither true nor false.
    """

    def wrong(rule: str, nearest: str | None = None) -> ConfigError:
        return ConfigError(key="space.constraints", value=expression, rule=rule, nearest=nearest)

    evaluator = EvalWithCompoundTypes(names=dict(names), functions=FUNCTIONS)
    try:
        value = evaluator.eval(expression)
    except NameNotDefined as error:
        raise wrong(
            f"{error.name} is not known; known are {', '.join(names)}", nearest_name(error.name, names)
        ) from None
    except SyntaxError as error:
        raise wrong(f"is no expression: {error.msg}") from None
    except (InvalidExpression, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise wrong(f"cannot be evaluated: {error}") from None
    if not isinstance(value, bool):
        raise wrong(f"must be true or false; it gives {value!r}", "a comparison, e.g. zero_stage < 3")
    return value
