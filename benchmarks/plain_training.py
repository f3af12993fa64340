"""A plain DeepSpeed loop, without anything of raysweep's: what both sides of a comparison are measured by.

torchrun --nproc-per-node 2 benchmarks/plain_training.py --deepspeed_config ds_config.json --interval 1

It is also the training script that DeepSpeed's autotuner is given. Rank 0 prints one JSON line.
"""

import argparse
import json
import os
import statistics
import time

import deepspeed
import torch
import transformers
from torch.utils.checkpoint import checkpoint

WARMUP_STEPS = 4
SEQUENCE_LENGTH = 128
VOCAB_SIZE = 256


def build_model(interval: int) -> torch.nn.Module:
    """GPT-2 of four blocks of 256; every `interval`-th block is recomputed in backward, none where it is 0."""
    config = transformers.GPT2Config(
        n_layer=4, n_embd=256, n_head=4, vocab_size=VOCAB_SIZE, n_positions=SEQUENCE_LENGTH, use_cache=False
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = transformers.AutoModelForCausalLM.from_config(config)
    for block in list(model.transformer.h)[:: interval or len(model.transformer.h) + 1] if interval else []:
        block.forward = _checkpointed(block.forward)
    return model


def _checkpointed(forward):  # type: ignore[no-untyped-def]
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def main() -> None:
    """Train, and print samples/s by the median step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--interval", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    arguments = deepspeed.add_config_arguments(parser).parse_args()
    torch.manual_seed(0)
    model = build_model(arguments.interval)
    engine, *_ = deepspeed.initialize(args=arguments, model=model, model_parameters=model.parameters())
    step_times_s = []
    for _ in range(WARMUP_STEPS + arguments.steps):
        began_s = time.perf_counter()
        for _ in range(engine.gradient_accumulation_steps()):
            tokens = torch.randint(0, VOCAB_SIZE, (engine.train_micro_batch_size_per_gpu(), SEQUENCE_LENGTH))
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
        step_times_s.append(time.perf_counter() - began_s)
    if int(os.environ.get("RANK", "0")) == 0:
        median_s = statistics.median(step_times_s[WARMUP_STEPS:])
        print(json.dumps({"samples_per_s": engine.train_batch_size() / median_s, "step_s": median_s}), flush=True)


if __name__ == "__main__":
    main()
