"""The configurations over which memory predictions are compared with runs: models, stages, other axes in turn."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.trial import LaunchRequest
from raysweep.workload import Workload

SEQUENCE, VOCABULARY = 64, 512
STEPS = 6
"""Of the real memory pass: five steady ones."""

WIDTHS = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "vocab_size": VOCABULARY}
GPT2 = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": SEQUENCE}
T5 = {"num_layers": 3, "num_decoder_layers": 2, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4}
VIT = {"num_hidden_layers": 4, "image_size": 32, "patch_size": 8, "num_labels": 10, "hidden_size": 64}
HF_EMPTY = {"config": None, "attn_implementation": None, "lora": None, "block_lists": [], "head": "causal"}


def _hf(config_class: str, overrides: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {"kind": "hf", **HF_EMPTY, "config_class": config_class, "overrides": dict(overrides), **changes}


LORA = {"r": 4, "alpha": 8.0, "target_modules": ["c_attn"], "dropout": 0.1}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {
        "kind": "gpt",
        "blocks": 4,
        "hidden": 128,
        "heads": 4,
        "vocab_size": VOCABULARY,
        "positions": SEQUENCE,
        "tied": True,
    },
    "gpt2": _hf("GPT2Config", GPT2),
    "llama": _hf("LlamaConfig", {**WIDTHS, "num_hidden_layers": 4, "num_key_value_heads": 2}),
    "bert": _hf("BertConfig", {**WIDTHS, "num_hidden_layers": 4}, head="masked"),
    "t5": _hf("T5Config", {**T5, "vocab_size": VOCABULARY}, head="seq2seq"),
    "vit": _hf("ViTConfig", {**VIT, "intermediate_size": 160, "num_attention_heads": 4}, head="image_classification"),
    "mixer": {
        "kind": "factory",
        "factory": "mixer_factory:make",
        "python_path": str(Path(__file__).parent),
        "kwargs": {},
        "block_lists": [],
    },
    "gpt2-lora": _hf("GPT2Config", GPT2, lora=LORA),
}
"""Name -> model section."""

SMALL_BUCKETS = {
    "reduce_bucket_size": 100_000,
    "allgather_bucket_size": 100_000,
    "stage3_prefetch_bucket_size": 50_000,
    "stage3_param_persistence_threshold": 1000,
}


def configurations(worlds: Sequence[int], families: Sequence[str]) -> list[tuple[str, LaunchRequest]]:
    """Family and request of each: every stage with accumulation 1 and 2 for each family, the other axes in turn."""
    axes = itertools.cycle(
        itertools.product((0, 1, 2), (1, 4, 8), ("bf16", "fp32", "bf16", "fp16"), (True, True, False))
    )
    turns = list(itertools.islice(axes, 108))
    random.Random(0).shuffle(turns)
    made = []
    for number, (world, name, stage, accumulation) in enumerate(
        itertools.product(worlds, families, (0, 1, 2, 3), (1, 2))
    ):
        interval, micro_batch, precision, is_small = turns[(number + 31 * (world - 2)) % len(turns)]
        candidate = Candidate(
            zero_stage=stage,
            activation_checkpoint_interval=interval,
            micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=accumulation,
        )
        made.append((name, _request(name, candidate, world, precision, SMALL_BUCKETS if is_small else {})))
    return made


def _request(
    name: str, candidate: Candidate, world_size: int, precision: str, buckets: Mapping[str, int]
) -> LaunchRequest:
    workload = Workload(
        model=FAMILIES[name],
        shape=None,
        data={"kind": "synthetic"},
        sequence_length=SEQUENCE,
        precision=precision,
        optimizer={},
        world_size=world_size,
    )
    config = {
        "train_micro_batch_size_per_gpu": candidate.micro_batch_size_per_gpu,
        "gradient_accumulation_steps": candidate.gradient_accumulation_steps,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": candidate.zero_stage, **buckets},
        "steps_per_print": 10**9,
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }
    return LaunchRequest(
        candidate=candidate,
        workload=workload,
        ds_config=config,
        window=MeasurementWindow(memory_pass_steps=STEPS),
    )
