"""A first sweep file for somebody's model, with a comment where a choice was made for them."""

from __future__ import annotations

from dataclasses import dataclass

from raysweep.errors import ConfigError
from raysweep.workload import legal_splits, nearest_global_batches

MOST_MICRO_BATCHES = 4
SMALL_GPT = "{kind: gpt, blocks: 4, hidden: 256, heads: 4, vocab_size: 256}"
SMALL_BUCKETS = """\
deepspeed:
  zero_optimization:
    # DeepSpeed's default of 5e8 elements (954 MiB) would outweigh this whole model.
    reduce_bucket_size: 1e6
    allgather_bucket_size: 1e6
    stage3_prefetch_bucket_size: 1e6
    stage3_param_persistence_threshold: 1000
"""
DEFAULT_BUCKETS = """\
# deepspeed: base.json              # your DeepSpeed config; stage, batch and precision in it are overridden
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What has to be known to write a sweep file."""

    name: str
    model: str
    """`gpt`, a config class of transformers, the path of a config.json, or `package.module:function`."""
    workers: int
    global_batch_size: int
    sequence_length: int
    on_gpu: bool


def sweep_text(answers: Answers) -> str:
    """The text of a sweep file.

    Raises:
        ConfigError: when the workers cannot share the global batch.
    """
    resources = "{CPU: 4, GPU: 1}" if answers.on_gpu else "{CPU: 1}"
    is_small = answers.model == "gpt"
    return f"""\
# Sweeps ZeRO stage x activation checkpoint interval x micro-batch of {answers.model}.
# All keys: docs/sweep-file.md. What will be tried, what cannot fit and why: raysweep plan on this file.
name: {answers.name}
model: {_model(answers.model)}
{_data(answers.model)}
sequence_length: {answers.sequence_length}
precision: bf16
optimizer: {{type: AdamW, params: {{lr: 1e-4}}}}
workers: {{count: {answers.workers}, resources_per_worker: {resources}}}
global_batch_size: {answers.global_batch_size}             # fixed: micro-batch x accumulation x workers
memory_budget: auto                 # the device's memory less 5 %; or a size such as 1.5GiB
{SMALL_BUCKETS if is_small else DEFAULT_BUCKETS}\
space:
  zero_stage: [0, 1, 2, 3]
  activation_checkpoint_interval: [0, 1, 2]     # 0: none; k: every k-th block is recomputed in backward
  micro_batch_size_per_gpu: {_micro_batches(answers)}
search: {{method: guided, trials: 12}}            # or grid, random, optuna
{"" if answers.on_gpu else "environment: {OMP_NUM_THREADS: 1}           # one thread a worker" + chr(10)}"""


def _model(model: str) -> str:
    if model == "gpt":
        return SMALL_GPT
    if ":" in model:
        return f"{{kind: factory, factory: {model!r}, python_path: .}}"
    if model.endswith("Config"):
        return f"{{kind: hf, config_class: {model}}}"
    return f"{{kind: hf, config: {model!r}}}"


def _data(model: str) -> str:
    if ":" in model:
        return "# data: the batches come from the factory"
    return "data: {kind: text, path: stdlib}    # Python's standard library; or the path of your own text"


def _micro_batches(answers: Answers) -> list[int]:
    """The largest legal micro-batches, at most four: small ones leave a device idle."""
    legal = sorted(micro for micro, _ in legal_splits(answers.global_batch_size, answers.workers))
    if not legal:
        nearest = nearest_global_batches(answers.global_batch_size, answers.workers)
        raise ConfigError(
            key="global_batch_size",
            value=answers.global_batch_size,
            rule=f"cannot be shared by {answers.workers} workers",
            nearest=" or ".join(map(str, nearest)),
        )
    doubled = [micro for micro in legal if micro & (micro - 1) == 0] or legal
    return doubled[-MOST_MICRO_BATCHES:]
