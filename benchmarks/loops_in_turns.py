"""A Llama's training loop and Trainer as a user writes them, of which two groups of ranks take steps in turns."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
import torch.distributed as dist

STEPS = 60
WARM_UP = 6
"""Steps of a run that are not counted: three of the memory pass and three of warm-up."""
PATIENCE_S = 240.0
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "use_cache": False,
}
SEQUENCE_LENGTH = 128


class Enough(BaseException):
    """Ends the bare loop."""


class Turns:
    """Lets two groups step in turns, and notes when each step began and ended. The bare group has the first turn."""

    def __init__(self, barrier: Any, *, bare: bool) -> None:
        self._barrier = barrier
        self._bare = bare
        self.began_s: list[float] = []
        self.ended_s: list[float] = []

    def next(self) -> None:
        """Called where a step begins, which is where the one before has ended."""
        if self.began_s:
            self.ended_s.append(time.perf_counter())
        # The bare group gives its turn away and waits for the next; the other waits for both.
        if self.began_s or not self._bare:
            self._wait()
        self._wait()
        self.began_s.append(time.perf_counter())

    def leave(self) -> None:
        """The bare group's last turn is over."""
        self.ended_s.append(time.perf_counter())
        self._wait()

    def _wait(self) -> None:
        self._barrier.wait(PATIENCE_S)

    def steps_s(self) -> list[float]:
        """How long each timed step took but the last, of which the end is not seen with a meter."""
        both = list(zip(self.began_s, self.ended_s, strict=False))
        return [end - begin for begin, end in both[WARM_UP : WARM_UP + STEPS - 1]]

    def intervals_s(self) -> list[float]:
        """From the end of one step to the end of the next, the other group's turn included."""
        ends = self.ended_s[WARM_UP - 1 :]
        return [after - before for before, after in itertools.pairwise(ends)]


class Bare:
    """Stands in for the meter, and does nothing but end the loop."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        """Leave after the last step."""
        self._steps += 1
        if self._steps == WARM_UP + STEPS:
            raise Enough


def build() -> Any:
    """A Llama of four blocks."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens, made beforehand."""

    tokens = torch.randint(0, 256, (2048, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def loop(config: dict[str, Any], meter: Any, *, turns: Turns) -> None:
    """DeepSpeed's own loop."""
    import deepspeed

    model = build()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    size, micro_step = config["train_micro_batch_size_per_gpu"], 0
    while True:
        turns.next()
        for _ in range(config["gradient_accumulation_steps"]):
            first = (micro_step * dist.get_world_size() + dist.get_rank()) * size
            tokens = Samples.tokens[[index % len(Samples.tokens) for index in range(first, first + size)]]
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
            micro_step += 1
        meter.step()


def make_trainer(folder: str, turns: Turns) -> Any:
    """A Trainer of the same model; a callback takes the turns."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class TakesTurns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.next()

    arguments = TrainingArguments(output_dir=folder, disable_tqdm=True)
    return Trainer(model=build(), args=arguments, train_dataset=Samples(), callbacks=[TakesTurns()])
