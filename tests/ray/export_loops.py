"""A few steps through the loops of other frameworks with exported files: one rank's process, which tells what it saw.

Called with the framework, the folder of its exported files, and a file for rank 0's report.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 5
LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 64}


class Samples(Dataset[dict[str, Tensor]]):
    """64 samples of 16 tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Counted:
    """Builds a Llama of four blocks, and counts how often its blocks are called."""

    calls = 0

    def build(self) -> LlamaForCausalLM:
        model = LlamaForCausalLM._from_config(LlamaConfig(**LLAMA, use_cache=False))
        for block in model.model.layers:
            block.register_forward_pre_hook(self._count)
        return model

    def _count(self, *_: Any) -> None:
        self.calls += 1


def through_accelerate(folder: Path) -> dict[str, Any]:
    """Accelerate's loop as its documentation writes it."""
    from prepare_accelerate import prepare
    from torch.utils.data import DataLoader

    counted = Counted()
    micro_batch = json.loads((folder / "ds_config.json").read_text())["train_micro_batch_size_per_gpu"]
    loader = DataLoader(Samples(), batch_size=micro_batch)
    accelerator, model, optimizer, loader = prepare(counted.build, loader)
    micro_steps = STEPS * accelerator.gradient_accumulation_steps
    for _, batch in zip(range(micro_steps), loader, strict=False):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    return _seen(model, counted, micro_steps)


def through_the_hf_trainer(folder: Path) -> dict[str, Any]:
    """Trainer.train."""
    from trainer_hf import make_trainer, read_arguments

    counted = Counted()
    arguments = read_arguments(max_steps=STEPS, save_strategy="no", report_to=[], output_dir=str(folder / "out"))
    trainer = make_trainer(counted.build, arguments, train_dataset=Samples())
    trainer.train()
    micro_steps = trainer.state.global_step * arguments.gradient_accumulation_steps
    total = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    return _seen(trainer.deepspeed, counted, micro_steps) | {"trainers_total": total}


def _seen(engine: Any, counted: Counted, micro_steps: int) -> dict[str, Any]:
    return {
        "world_size": torch.distributed.get_world_size(),
        "micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "global_batch_size": engine.train_batch_size(),
        "zero_stage": engine.zero_optimization_stage(),
        "optimizer_steps": engine.global_steps,
        "recomputed_blocks": counted.calls / micro_steps - LLAMA["num_hidden_layers"],
    }


LOOPS = {"accelerate": through_accelerate, "hf": through_the_hf_trainer}

if __name__ == "__main__":
    framework, folder, report = sys.argv[1:]
    sys.path.insert(0, folder)
    seen = LOOPS[framework](Path(folder))
    if os.environ["RANK"] == "0":
        Path(report).write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()
