"""Renders a candidate as the DeepSpeed config: the worker runs it and export writes it, so they cannot differ."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from raysweep.candidate import Candidate
from raysweep.errors import ConfigError
from raysweep.workload import ModelShape, Workload

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
DEFAULT_OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-3}}
_ADAM_TYPES = ("adam", "adamw")
FILLED_KEYS = (*BATCH_KEYS, "zero_optimization.stage", "bf16.enabled", "fp16.enabled")
"""Keys that are filled for each candidate, whatever the base config says of them."""
AUTO_SIZES = {
    "zero_optimization.reduce_bucket_size": 500_000_000,
    "zero_optimization.allgather_bucket_size": 500_000_000,
    "zero_optimization.stage3_prefetch_bucket_size": 50_000_000,
}
"""Keys whose `auto` becomes a number that follows from the model -> DeepSpeed's default, in elements."""
AUTO_SHARE = 8
"""An automatic bucket holds an eighth of the parameters: DeepSpeed's default is larger than many a model."""
_LAUNCHER_KEYS = ("hostfile", "num_nodes", "num_gpus", "include", "exclude", "master_addr", "master_port", "launcher")


def prepare_base(
    base: Mapping[str, Any], *, precision: str, optimizer: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[str]]:
    """The user's DeepSpeed config made ready to be filled for each candidate, and a note for each change.

    Batch keys and the stage are dropped, because the candidate has them. The section of another precision is dropped
    whole: a bf16 section refuses fp16's keys. The sweep's own `optimizer` replaces the one of the base config.

    Raises:
        ConfigError: for `auto` outside the keys that are filled here, a list where one value is due, and options of
            the DeepSpeed launcher.
    """
    config: dict[str, Any] = copy.deepcopy(dict(base))
    notes: list[str] = []
    for key in _LAUNCHER_KEYS:
        if key in config:
            raise ConfigError(
                key=f"deepspeed.{key}",
                value=config[key],
                rule="nodes and workers come from Ray (see workers and cluster)",
            )
    for key in BATCH_KEYS:
        if key in config:
            notes.append(f"deepspeed.{key}: {config.pop(key)!r} is overridden by each candidate's batch")
    zero = config.get("zero_optimization")
    if isinstance(zero, dict) and "stage" in zero:
        notes.append(
            f"deepspeed.zero_optimization.stage: {zero.pop('stage')!r} is overridden by each candidate's stage"
        )
    _choose_precision(config, precision, notes)
    if optimizer is not None and "optimizer" in config:
        notes.append("deepspeed.optimizer is overridden by the sweep's optimizer section")
    config["optimizer"] = copy.deepcopy(dict(optimizer or config.get("optimizer") or DEFAULT_OPTIMIZER))
    _refuse_auto_and_lists(config)
    return config, notes


def _choose_precision(config: dict[str, Any], precision: str, notes: list[str]) -> None:
    for section in ("bf16", "fp16", "amp"):
        if section == precision or section not in config:
            continue
        dropped = config.pop(section)
        keys = ", ".join(sorted(key for key in dropped if key != "enabled")) if isinstance(dropped, dict) else ""
        notes.append(
            f"deepspeed.{section} is dropped because precision is {precision}"
            + (f" (its keys {keys} do not apply)" if keys else "")
        )
    if precision != "fp32":
        config[precision] = {**config.get(precision, {}), "enabled": True}


def _refuse_auto_and_lists(config: Mapping[str, Any]) -> None:
    for path, value in _walk(config):
        if value == "auto" and path not in (*FILLED_KEYS, *AUTO_SIZES):
            raise ConfigError(
                key=f"deepspeed.{path}",
                value="auto",
                rule="'auto' is filled by the Hugging Face Trainer only, and here for bucket sizes; write a value, or "
                "leave the key out",
            )
        if isinstance(value, list) and path.partition(".")[0] in ("zero_optimization", "bf16", "fp16", *BATCH_KEYS):
            raise ConfigError(
                key=f"deepspeed.{path}",
                value=value,
                rule="takes one value; put choices under space",
                nearest=f"space.deepspeed: {{{path}: {value}}}",
            )


def _walk(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _walk(value, f"{path}.")
        else:
            yield path, value


def render(candidate: Candidate, *, workload: Workload, base: Mapping[str, Any]) -> dict[str, Any]:
    """The DeepSpeed config of one candidate: plain values, no 'auto', ready for `deepspeed.initialize`.

    The total batch is left out: DeepSpeed derives it from micro-batch, accumulation and world size once the
    process group is up, so the same file works for another number of workers.
    """
    config: dict[str, Any] = copy.deepcopy(dict(base))
    config["train_micro_batch_size_per_gpu"] = candidate.micro_batch_size_per_gpu
    config["gradient_accumulation_steps"] = candidate.gradient_accumulation_steps
    config["zero_optimization"] = {**config.get("zero_optimization", {}), "stage": candidate.zero_stage}
    optimizer = config["optimizer"]
    if optimizer["type"].lower() not in _ADAM_TYPES:
        config.setdefault("zero_allow_untested_optimizer", True)
    elif workload.device == "cpu":
        # DeepSpeed's own CPU Adam is a compiled extension; torch's needs no compiler and gives the same updates.
        optimizer["params"] = {"torch_adam": True, **optimizer.get("params", {})}
    for path, value in candidate.deepspeed.items():
        _set(config, path.split("."), value)
    if workload.device == "cpu" and config["zero_optimization"].get("offload_optimizer"):
        # DeepSpeed asks for its compiled CPU Adam with offload; here torch's stands in for it.
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    for path, default in AUTO_SIZES.items():
        key = path.partition(".")[2]
        if config["zero_optimization"].get(key) == "auto":
            config["zero_optimization"][key] = auto_size(default, workload.shape, key=path)
    config["zero_optimization"] = {key: _whole(value) for key, value in config["zero_optimization"].items()}
    return config


def auto_size(default: int, shape: ModelShape | None, *, key: str) -> int:
    """Elements of an automatic bucket: an eighth of the parameters, at most DeepSpeed's default.

    It holds at least the largest parameter, because a bucket takes parameters whole.

    Raises:
        ConfigError: when the parameters are not known.
    """
    if shape is None:
        rule = "'auto' follows from the model's parameters, which are not known before torch is installed"
        raise ConfigError(key=f"deepspeed.{key}", value="auto", rule=rule, nearest=str(default))
    return max(min(default, shape.parameters // AUTO_SHARE), shape.largest_parameter)


def _whole(value: Any) -> Any:
    """Sizes and thresholds are integers in DeepSpeed's schema; `100000.0`, as some writers of YAML have it, is one."""
    return int(value) if isinstance(value, float) and value.is_integer() and value > 1 else value


def _set(config: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        config = config.setdefault(part, {})
    config[path[-1]] = value
