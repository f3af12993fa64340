"""A Hugging Face Trainer as a candidate: its fields are set, its steps are seen, its mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worker_builders import request_for, single_rank, with_own_code

from raysweep.errors import ConfigError
from raysweep.trial import LaunchRequest
from raysweep.worker.loop import measure_candidate

TRAINERS = """
import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainerCallback, TrainingArguments

TOKENS = torch.randint(0, 64, (40, 16), generator=torch.Generator().manual_seed(1))
SIZES = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, vocab_size=64,
    tie_word_embeddings=False, use_cache=False,
)
seen = {}


class Samples(Dataset):
    def __len__(self):
        return len(TOKENS)

    def __getitem__(self, index):
        return {"input_ids": TOKENS[index], "labels": TOKENS[index]}


class Notes(TrainerCallback):
    def on_step_end(self, args, state, control, **given):
        total = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        seen.update(total=total, arguments=args, steps=state.global_step)


def arguments(folder, **changes):
    # What a user may have written, all of which would disturb a measurement.
    return TrainingArguments(
        output_dir=folder, learning_rate=3e-4, num_train_epochs=3, per_device_train_batch_size=7, max_grad_norm=1.0,
        activation_checkpointing=True, save_strategy="steps", save_steps=1, eval_strategy="no", **changes
    )


def build():
    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))


def make(folder):
    return Trainer(args=arguments(folder), model=build(), train_dataset=Samples(), callbacks=[Notes()])


def make_with_model_init(folder):
    return Trainer(args=arguments(folder), model_init=build, train_dataset=Samples())


MADE_BEFORE = arguments("out")


def made_before(folder):
    return Trainer(args=MADE_BEFORE, model=build(), train_dataset=Samples())


def with_an_optimizer(folder):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(args=arguments(folder), model=model, train_dataset=Samples(), optimizers=(optimizer, None))


def no_trainer(folder):
    return 7
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainers")
    (folder / "lent_trainers.py").write_text(TRAINERS)
    return folder


def _request(folder: Path, stage: int, function: str, **launch: Any) -> LaunchRequest:
    name, out = f"lent_trainers:{function}", str(folder / "out")
    return with_own_code(request_for(stage, **launch), "trainer", folder, name, folder=out)


def test_a_trainer_trains_the_candidate_and_nothing_beside(folder: Path) -> None:
    report = measure_candidate(_request(folder, 2, "make", interval=2, accumulation=2), single_rank())
    assert (report.recomputed_blocks, len(report.step_times_s), report.random_forward) == (2, 2, False)
    import lent_trainers

    arguments = lent_trainers.seen["arguments"]
    assert lent_trainers.seen["total"] == 4
    assert (arguments.max_grad_norm, arguments.learning_rate) == (0.0, 1e-3)  # as the DeepSpeed config says
    assert not list((folder / "out").rglob("checkpoint*"))
    assert lent_trainers.seen["steps"] == 3 + 1 + 2  # memory pass, warm-up, window


def test_all_stages_start_from_the_same_weights_and_see_the_same_samples(folder: Path) -> None:
    reports = [
        measure_candidate(_request(folder, stage, "make", accumulation=accumulation, micro_batch=size), single_rank())
        for stage, accumulation, size in ((0, 1, 4), (1, 2, 2), (3, 2, 2))
    ]
    assert [report.first_loss for report in reports] == [pytest.approx(reports[0].first_loss, rel=1e-3)] * 3
    assert [report.loss_at_step_5 for report in reports] == [pytest.approx(reports[0].loss_at_step_5, rel=1e-2)] * 3
    assert not any(report.cycled_data for report in reports)


def test_a_model_that_the_trainer_makes_itself_is_checkpointed_too(folder: Path) -> None:
    report = measure_candidate(_request(folder, 1, "make_with_model_init", interval=1), single_rank())
    assert report.recomputed_blocks == 4


REFUSED = {
    "no_trainer": "must return a transformers.Trainer; it returned a int",
    "made_before": "must make its TrainingArguments itself",
    "with_an_optimizer": "set `optimizer` in the sweep file",
}


@pytest.mark.parametrize("function", REFUSED)
def test_a_trainer_that_cannot_be_the_candidates_is_refused(folder: Path, function: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.trainer lent_trainers:") as refused:
        measure_candidate(_request(folder, 1, function), single_rank())
    assert REFUSED[function] in str(refused.value)
