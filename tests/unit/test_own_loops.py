"""A loop of the user's own is measured as ours is, and is credited with nothing that it did not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worker_builders import request_for, single_rank, with_own_code

from raysweep.errors import CheckpointMismatch, ConfigError, NumericsError, OutOfMemory
from raysweep.measurement import RankReport
from raysweep.trial import LaunchRequest
from raysweep.worker.loop import measure_candidate

LOOPS = '''
import deepspeed
import torch
from torch import nn

from raysweep.worker.data import MicroBatches, SyntheticCorpus
from raysweep.worker.gpt import GPT

SIZES = dict(blocks=4, hidden=32, heads=4, vocab_size=256, positions=16, tied=True)
cleaned_up = []


class Request:
    """As much of a launch request as the batches ask for."""

    class candidate:
        micro_batch_size_per_gpu = None

    class workload:
        world_size, precision = 1, "bf16"


def build(config, model=None):
    if model is None:
        torch.set_default_dtype(torch.bfloat16)
        with deepspeed.zero.Init(config_dict_or_path=config, enabled=config["zero_optimization"]["stage"] == 3):
            model = GPT(**SIZES)
        torch.set_default_dtype(torch.float32)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


def batches_of(size):
    Request.candidate.micro_batch_size_per_gpu = size
    return MicroBatches(SyntheticCorpus(sequence_length=16, vocab_size=256, seed=0), Request, 0)


def train(config, meter, *, engine=None, size=None, every=None, steps=None, backward=True, told=None):
    engine = engine or build(config)
    batches = batches_of(size or config["train_micro_batch_size_per_gpu"])
    every = every or config["gradient_accumulation_steps"]
    try:
        while steps is None or steps > 0:
            for _ in range(every):
                batch = next(batches)
                loss = engine(**batch)
                engine.backward(loss) if backward else loss.backward()
                loss = None
                engine.step()
            meter.step(told)
            steps = steps and steps - 1
    finally:
        cleaned_up.append(True)


def another_stage(config, meter):
    config["zero_optimization"]["stage"] = 1
    train(config, meter)


def no_engine(config, meter):
    meter.step()


def two_engines(config, meter):
    build(config)
    build(config)


def goes_on_after_errors(config, meter):
    engine, batches = build(config), batches_of(2)
    while True:
        try:
            engine.backward(engine(**next(batches)))
            engine.step()
            meter.step()
        except Exception:
            pass


def checkpointed_already(config, meter):
    from raysweep.worker.blocks import checkpoint_blocks, find_block_lists

    model = GPT(**SIZES).bfloat16()
    checkpoint_blocks(find_block_lists(model), 1)
    train(config, meter, engine=build(config, model))


class EndsEarly:
    """Batches whose fifth comes alone in its step."""


def data_ends(config, meter):
    engine, batches = build(config), batches_of(2)
    while True:
        for length in (2, 2, 2, 1):
            for index in range(length):
                engine.set_gradient_accumulation_boundary(index == length - 1)
                engine.backward(engine(**next(batches)))
                engine.step()
            meter.step()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops")
    (folder / "lent_loops.py").write_text(LOOPS)
    return folder


def _lent(folder: Path, request: LaunchRequest, function: str, **kwargs: Any) -> LaunchRequest:
    return with_own_code(request, "loop", folder, f"lent_loops:{function}", **kwargs)


def _measure(request: LaunchRequest) -> RankReport:
    return measure_candidate(request, single_rank())


def _seen(report: RankReport) -> tuple[Any, ...]:
    return (
        report.first_loss,
        report.loss_at_step_5,
        report.peak_memory_bytes,
        report.peak_phase,
        report.recomputed_blocks,
        report.skipped_steps,
        report.random_forward,
        len(report.step_times_s),
        report.warmup_steps,
    )


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_same_training_is_measured_the_same_in_a_loop_of_ones_own(folder: Path, stage: int) -> None:
    request = request_for(stage, interval=2, accumulation=2)
    ours, lent = _measure(request), _measure(_lent(folder, request, "train"))
    assert _seen(lent) == _seen(ours)
    assert lent.recomputed_blocks == 2 and lent.left_behind_bytes == 0
    batch_bytes = 2 * (2 * 16 * 8) + 16
    assert 0 <= lent.resting_bytes - ours.resting_bytes <= batch_bytes  # the loop still holds its last batch
    assert lent.build_peak_bytes > 0 and lent.build_s > 0 and not lent.cycled_data


def test_finally_runs_when_the_meter_ends_the_loop(folder: Path) -> None:
    _measure(_lent(folder, request_for(1), "train"))
    import lent_loops

    assert lent_loops.cleaned_up


def test_a_loop_that_goes_on_after_errors_is_ended(folder: Path) -> None:
    assert len(_measure(_lent(folder, request_for(1), "goes_on_after_errors")).step_times_s) == 2


def test_a_step_that_the_data_ended_counts_nowhere(folder: Path) -> None:
    report = _measure(_lent(folder, request_for(1, accumulation=2), "data_ends"))
    assert report.cycled_data and len(report.step_times_s) == 2


def test_a_loss_that_the_loop_tells_is_taken(folder: Path) -> None:
    request = _lent(folder, request_for(1), "train", backward=False, told=1.5)
    assert _measure(request).first_loss == 1.5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no_engine": ({}, "called meter.step() before an engine"),
    "two_engines": ({}, "called deepspeed.initialize twice"),
    "another_stage": ({}, "zero_stage 1 for 2"),
    "train size": ({"size": 3}, "must train on micro-batches of 2"),
    "train every 1": ({"every": 1}, "must call meter.step() after every 2 micro-batches; it did so after 1"),
    "train every 4": ({"every": 4}, "must call meter.step() after every 2 micro-batches; it did so after 4"),
    "train steps": ({"steps": 2}, "ended after 2 optimizer steps, before it was measured"),
    "train backward": ({"backward": False}, "shows no loss"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_loop_that_trains_something_else_is_refused(folder: Path, case: str) -> None:
    kwargs, rule = REFUSED[case]
    request = _lent(folder, request_for(2, accumulation=2), case.split()[0], **kwargs)
    with pytest.raises(ConfigError, match=r"model\.loop lent_loops:") as refused:
        _measure(request)
    assert rule in str(refused.value)


def test_blocks_that_the_loop_checkpoints_itself_are_seen(folder: Path) -> None:
    with pytest.raises(CheckpointMismatch, match=r"4\.0 were counted"):
        _measure(_lent(folder, request_for(1), "checkpointed_already"))


def test_past_the_budget_a_loop_runs_out_of_memory_like_ours(folder: Path) -> None:
    for on_budget in ("record", "raise"):
        request = request_for(1, memory_budget_bytes=100_000, on_budget=on_budget)
        with pytest.raises(OutOfMemory) as ended:
            _measure(_lent(folder, request, "train"))
        assert ended.value.data.get("collective", False) is (on_budget == "record")
    assert _measure(request_for(1)).peak_memory_bytes > 100_000  # the process is fit for the next


def test_a_loss_that_is_not_finite_ends_a_loop(folder: Path) -> None:
    with pytest.raises(NumericsError, match="not finite in step 1"):
        _measure(_lent(folder, request_for(1), "train", told=float("nan")))
