"""The user's own Trainer or loop trains the winner: with its config and checkpointed blocks, as long as it should."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_workload
from export_builders import make_answer
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from worker_builders import request_for, single_rank, with_own_code

from raysweep.exports.targets import write_targets
from raysweep.trial import LaunchRequest
from raysweep.worker.own_training import train_own

OWN = """
import deepspeed
from torch.utils.data import Dataset
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainerCallback, TrainingArguments

TOKENS = torch.randint(0, 64, (40, 16), generator=torch.Generator().manual_seed(1))
SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, vocab_size=64)
seen = {}


class Samples(Dataset):
    def __len__(self):
        return len(TOKENS)

    def __getitem__(self, index):
        return {"input_ids": TOKENS[index], "labels": TOKENS[index]}


class Notes(TrainerCallback):
    def on_step_end(self, args, state, control, **given):
        seen.update(steps=state.global_step, save_steps=args.save_steps, micro=args.per_device_train_batch_size)


def build():
    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, use_cache=False))


def make(folder):
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=7, max_steps=4, save_steps=77, report_to="none"
    )
    return Trainer(model=build(), args=arguments, train_dataset=Samples(), callbacks=[Notes()])


def train(config, meter, *, ends_after=None):
    model = build()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    size, step = engine.train_micro_batch_size_per_gpu(), 0
    while ends_after is None or step < ends_after:
        for _ in range(engine.gradient_accumulation_steps()):
            tokens = TOKENS[:size]
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
        step += 1
        meter.step(loss)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_code.py").write_text(OWN)
    return folder


def request_of(code: Path, kind: str, **kwargs: Any) -> LaunchRequest:
    """Two micro-batches of 2, every second block checkpointed."""
    function = "own_code:train" if kind == "loop" else "own_code:make"
    return with_own_code(request_for(2, interval=2, accumulation=2), kind, code, function, **kwargs)


def checkpointed(module: nn.Module) -> int:
    return sum(isinstance(each, CheckpointWrapper) for each in module.modules())


def test_a_loop_trains_as_many_steps_as_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = train_own(request_of(folder, "loop"), single_rank(), steps=3, save=str(folder / "saved"))
    assert engine.global_steps == 3 and engine.train_batch_size() == 4 and checkpointed(engine.module) == 2
    assert "step 3: loss " in capsys.readouterr().out and (folder / "saved" / "latest").exists()
    engine.destroy()


def test_a_loop_that_ends_by_itself_is_left_to(folder: Path) -> None:
    engine = train_own(request_of(folder, "loop", ends_after=2), single_rank(), steps=None)
    assert engine.global_steps == 2
    engine.destroy()


@pytest.mark.parametrize(("steps", "taken"), [(2, 2), (None, 4)])
def test_a_trainer_keeps_what_the_candidate_does_not_decide(folder: Path, steps: int | None, taken: int) -> None:
    engine = train_own(request_of(folder, "trainer", folder=str(folder / "out")), single_rank(), steps=steps)
    import own_code  # type: ignore[import-not-found]

    assert own_code.seen == {"steps": taken, "save_steps": 77, "micro": 2}
    assert engine.global_steps == taken and checkpointed(engine.module) == 2
    engine.destroy()


@pytest.mark.parametrize("kind", ["trainer", "loop"])
def test_exports_call_the_users_function(tmp_path: Path, kind: str) -> None:
    model = {"kind": kind, kind: "mine:train", "kwargs": {}, "block_lists": [], "python_path": "/code"}
    answer = make_answer(make_candidate(), workload=make_workload(model=model, shape=None))
    write_targets(answer, ["torchrun", "slurm", "ray", "kuberay"], tmp_path)
    job = (tmp_path / "kuberay" / "rayjob.yaml").read_text()
    assert "--address auto" in job and "--steps 1000" not in job
    for target in ("torchrun", "slurm"):
        script = (tmp_path / target / "train_deepspeed.py").read_text()
        ast.parse(script)
        assert "mine:train" in script and "train_own(" in script
        names = runpy.run_path(str(tmp_path / target / "train_deepspeed.py"), run_name="exported")
        request = names["read_request"]()
        assert (request.candidate, request.workload) == (answer.candidate, answer.workload)
        assert request.ds_config == answer.ds_config and names["WORLD_SIZE"] == 2
        assert not (tmp_path / target / "model.py").exists()
    told = (tmp_path / "README.md").read_text()
    assert "`mine:train`" in told and "/code" in told and f"of your own {kind}, measured" in told


def test_a_compiled_winner_is_compiled_by_the_exported_code(tmp_path: Path) -> None:
    answer = make_answer(make_candidate(torch_compile=True, zero_stage=1))
    write_targets(answer, ["deepspeed"], tmp_path)
    code = (tmp_path / "deepspeed" / "checkpoint_blocks.py").read_text()
    names: dict[str, Any] = {}
    exec(compile(code, "checkpoint_blocks.py", "exec"), names)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.GELU()) for _ in range(2))
    assert names["checkpoint_blocks"](nn.ModuleDict({"blocks": blocks})) == 0
    assert all(hasattr(block.forward, "get_compiler_config") for block in blocks)
    assert "torch.compile" in (tmp_path / "README.md").read_text()
