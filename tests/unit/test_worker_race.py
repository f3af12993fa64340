"""In the training process: a race ends a window, tokens are counted, the micro-benchmark runs, offload trains."""

from __future__ import annotations

import itertools

import pytest
import torch
from builders import make_candidate, make_request
from worker_builders import ScriptedEngine, single_rank

from raysweep.budget import MeasurementWindow
from raysweep.memory import estimate_memory
from raysweep.race import Race, WindowEnd
from raysweep.worker.device import CpuDevice
from raysweep.worker.loop import measure_candidate
from raysweep.worker.meter import Stepper, clock
from raysweep.worker.micro_benchmark import COPIED_BYTES, SIDES, micro_benchmark
from raysweep.workload import gpt_shape
from raysweep.zero_settings import ZeroSettings

WINDOW = MeasurementWindow(warmup_min_steps=1, warmup_max_steps=1, measured_steps=20, measured_s=0.0)


def _stepper(batch: dict[str, torch.Tensor], *, accumulation: int = 1) -> Stepper:
    return Stepper(
        engine=ScriptedEngine(itertools.repeat(1.0), step_s=0.01),
        batches=itertools.repeat(batch),
        gradient_accumulation_steps=accumulation,
        device=CpuDevice(),
        rank=single_rank(),
    )


PLAIN = {"input_ids": torch.zeros(4, 6, dtype=torch.long)}


def test_far_behind_the_best_the_window_ends_early() -> None:
    timing = clock(_stepper(PLAIN), WINDOW, CpuDevice(), Race(best_step_time_s=1e-4, best_log_error=0.0))
    assert timing.window_end == WindowEnd.LOST and len(timing.step_times_s) == 5


def test_without_a_race_the_window_is_full() -> None:
    timing = clock(_stepper(PLAIN), WINDOW, CpuDevice())
    assert timing.window_end == WindowEnd.FULL and len(timing.step_times_s) == 20
    assert timing.nonpadding_tokens == 20 * 24, "every token of the inputs, where no mask hides one"


def test_tokens_that_a_mask_hides_do_not_count() -> None:
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[0, 2:] = 0
    timing = clock(_stepper(PLAIN | {"attention_mask": mask}, accumulation=2), WINDOW, CpuDevice())
    assert timing.nonpadding_tokens == 20 * 2 * 20


def test_a_batch_without_tokens_counts_none() -> None:
    assert clock(_stepper({"pixel_values": torch.zeros(4, 3)}), WINDOW, CpuDevice()).nonpadding_tokens is None


def test_the_micro_benchmark_of_a_lone_worker_has_three_sizes_and_no_links() -> None:
    probe = micro_benchmark(single_rank(), device="cpu", precision="bf16")
    assert [side for side, _ in probe.matmul_s] == list(SIDES["cpu"])
    assert [size for size, _ in probe.copy_s] == list(COPIED_BYTES["cpu"])
    assert probe.all_reduce_s == probe.all_gather_s == ()
    assert probe.flop_per_s > 0 and probe.memory_bytes_per_s > 0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_offloaded_optimizer_trains_alike_and_keeps_the_prediction(stage: int) -> None:
    """On CPU, with torch's Adam: the losses are those without offload, and the peak is inside the band."""
    offload = {"zero_optimization.offload_optimizer.device": "cpu"}
    reports = {}
    for axes in ({}, offload):
        candidate = make_candidate(zero_stage=stage, deepspeed=axes)
        request = make_request(candidate=candidate, world_size=1)
        report = measure_candidate(request, single_rank())
        reports[bool(axes)] = report
        workload = request.workload
        assert workload.shape == gpt_shape(blocks=4, hidden=32, vocab_size=256, positions=16, tied=True)
        estimate = estimate_memory(candidate, workload, ZeroSettings.from_ds_config(request.ds_config))
        assert estimate.lower_bound_bytes <= report.peak_memory_bytes
    assert reports[True].first_loss == pytest.approx(reports[False].first_loss, rel=1e-3)
    assert reports[True].loss_at_step_5 == pytest.approx(reports[False].loss_at_step_5, rel=1e-2)
