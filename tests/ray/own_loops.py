"""The user's side of the tests of own loops: a Trainer, a DeepSpeed loop and an Accelerate loop of one small Llama."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainerCallback, TrainingArguments

LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 300,
}
TOKENS = torch.randint(0, 300, (512, 16), generator=torch.Generator().manual_seed(1))


class Samples(Dataset[dict[str, Tensor]]):
    """512 samples of 16 tokens."""

    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": TOKENS[index], "labels": TOKENS[index]}


def build() -> Any:
    """A Llama of four blocks."""
    return AutoModelForCausalLM.from_config(LlamaConfig(**LLAMA, use_cache=False))


class Totals(TrainerCallback):
    """Writes the Trainer's own total batch to a file of the rank's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        total = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        told = {"total": total, "world_size": args.world_size, "state": state.train_batch_size}
        name = f"{args.gradient_accumulation_steps}-{args.per_device_train_batch_size}-{os.environ['RANK']}.json"
        (self._folder / name).write_text(json.dumps(told))


def make_trainer(folder: str) -> Trainer:
    """A Trainer as a user writes it."""
    arguments = TrainingArguments(output_dir=f"{folder}/out", learning_rate=3e-4, num_train_epochs=3)
    return Trainer(model=build(), args=arguments, train_dataset=Samples(), callbacks=[Totals(Path(folder))])


def with_deepspeed(engine_config: dict[str, Any], meter: Any) -> None:
    """DeepSpeed's own loop."""
    model = build()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=engine_config)
    size, rank, world_size = engine.train_micro_batch_size_per_gpu(), dist.get_rank(), dist.get_world_size()
    micro_step = 0
    while True:
        first = (micro_step * world_size + rank) * size
        tokens = TOKENS[[index % len(TOKENS) for index in range(first, first + size)]]
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        ends_step = engine.is_gradient_accumulation_boundary()
        engine.step()
        micro_step += 1
        if ends_step:
            meter.step()


def with_accelerate(engine_config: dict[str, Any], meter: Any) -> None:
    """Accelerate's loop as its documentation writes it."""
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin, DummyOptim

    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=engine_config))
    model = build()
    optimizer = DummyOptim([parameter for parameter in model.parameters() if parameter.requires_grad])
    loader = DataLoader(Samples(), batch_size=engine_config["train_micro_batch_size_per_gpu"], drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while True:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                meter.step()
