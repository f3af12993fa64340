"""The stopwatch, on an engine whose pace, losses and skipped steps are given."""

import itertools
import statistics

import pytest
import torch
from worker_builders import ScriptedEngine, single_rank

from raysweep.budget import MeasurementWindow
from raysweep.errors import NoSteps, NumericsError
from raysweep.units import GIB, MIB
from raysweep.worker.device import CpuDevice, memory_fraction, split_overhead
from raysweep.worker.meter import Stepper, clock, weigh
from raysweep.worker.tracker import LiveBytesTracker, held_bytes


def stepper_for(engine: ScriptedEngine, *, accumulation: int = 1) -> Stepper:
    return Stepper(
        engine=engine,
        batches=itertools.repeat({"input_ids": torch.zeros(8, 1)}),
        gradient_accumulation_steps=accumulation,
        device=CpuDevice(),
        rank=single_rank(),
    )


def test_a_step_of_50_ms_gives_160_samples_per_s_at_global_batch_8() -> None:
    stepper = stepper_for(ScriptedEngine(itertools.repeat(1.0), step_s=0.025), accumulation=2)
    timing = clock(stepper, MeasurementWindow(measured_s=0.0), CpuDevice())
    assert 8 / statistics.median(timing.step_times_s) == pytest.approx(160, rel=0.05)
    assert len(timing.step_times_s) == 8
    assert timing.cpu_time_s < sum(timing.step_times_s) / 2


def test_warm_up_ends_when_settled_and_at_the_latest_after_its_most_steps() -> None:
    steady = stepper_for(ScriptedEngine(itertools.repeat(1.0), step_s=0.05))
    assert 3 <= clock(steady, MeasurementWindow(measured_steps=1, measured_s=0.0), CpuDevice()).warmup_steps <= 10
    never = MeasurementWindow(settle_tolerance=-1.0, measured_steps=1, measured_s=0.0)
    assert clock(stepper_for(ScriptedEngine(itertools.repeat(1.0))), never, CpuDevice()).warmup_steps == 10


def test_window_lasts_its_seconds_where_its_steps_take_less() -> None:
    stepper = stepper_for(ScriptedEngine(itertools.repeat(1.0), step_s=0.01))
    timing = clock(stepper, MeasurementWindow(measured_steps=2, measured_s=0.2), CpuDevice())
    assert 0.2 <= sum(timing.step_times_s) < 0.4
    assert len(timing.step_times_s) > 2


def test_loss_of_a_step_is_the_mean_of_its_micro_steps() -> None:
    stepper = stepper_for(ScriptedEngine(iter([1.0, 3.0, 4.0, 6.0])), accumulation=2)
    stepper.take(), stepper.take()
    assert stepper.losses == [2.0, 5.0]
    assert stepper.micro_steps == 4


def test_loss_that_is_not_finite_is_a_numerics_error() -> None:
    stepper = stepper_for(ScriptedEngine(iter([1.0, float("nan")])))
    stepper.take()
    with pytest.raises(NumericsError, match="not finite in step 2"):
        stepper.take()


def test_twenty_skipped_steps_in_a_row_are_a_numerics_error() -> None:
    engine = ScriptedEngine(itertools.repeat(float("inf")), overflows=range(1, 99))
    with pytest.raises(NumericsError, match="20 steps in a row were skipped: gradients are not finite"):
        clock(stepper_for(engine), MeasurementWindow(), CpuDevice())
    assert engine.skipped_steps == 20


def test_steps_that_overflow_are_in_no_timing_and_are_counted_b31() -> None:
    engine = ScriptedEngine(itertools.repeat(1.0), overflows=range(1, 7))
    stepper = stepper_for(engine)
    window = MeasurementWindow(warmup_min_steps=3, warmup_max_steps=3, measured_steps=8, measured_s=0.0)
    timing = clock(stepper, window, CpuDevice())
    assert (stepper.skipped_steps, timing.warmup_steps, len(timing.step_times_s)) == (6, 3, 8)
    assert len(stepper.losses) == 6 + 3 + 8


def test_window_without_steps_is_an_error() -> None:
    window = MeasurementWindow(warmup_min_steps=0, warmup_max_steps=0, measured_steps=0, measured_s=0.0)
    with pytest.raises(NoSteps):
        clock(stepper_for(ScriptedEngine(itertools.repeat(1.0))), window, CpuDevice())


def test_memory_pass_takes_the_lowest_steady_peak() -> None:
    class Uneven(ScriptedEngine):
        sizes = iter([1, 5, 3, 4])

        def step(self) -> None:
            torch.empty(next(self.sizes) * MIB, dtype=torch.uint8)

    with LiveBytesTracker() as tracker:
        memory = weigh(stepper_for(Uneven(itertools.repeat(1.0))), tracker, steps=4)
    assert memory.peak_bytes == pytest.approx(3 * MIB, abs=1000)
    assert memory.peak_phase == "step"
    assert memory.resting_bytes < 1000


def test_tracker_counts_a_storage_once_until_it_is_freed() -> None:
    with LiveBytesTracker() as tracker:
        first = torch.zeros(1000)
        view = first.view(10, 100)
        assert tracker.current_bytes() == 4000
        del first
        assert tracker.current_bytes() == 4000
        del view
    assert (tracker.current_bytes(), tracker.peak_bytes()) == (0, 4000)


def test_held_bytes_counts_shared_storages_once() -> None:
    tensor = torch.zeros(1000)
    assert held_bytes([tensor, tensor[:10], "no tensor", torch.zeros(10, device="meta")]) == 4000


@pytest.mark.parametrize(
    ("budget_bytes", "fraction"), [(None, 1.0), (40 * GIB, 0.4875), (100 * GIB, 1.0), (GIB // 2, 0.0)]
)
def test_cuda_cap_is_the_budget_less_what_is_not_torch(budget_bytes: int | None, fraction: float) -> None:
    assert memory_fraction(budget_bytes, overhead_bytes=GIB, total_bytes=80 * GIB) == fraction


def test_device_memory_beyond_the_allowance_is_foreign() -> None:
    assert split_overhead(GIB) == (GIB, 0)
    assert split_overhead(4 * GIB) == (GIB * 3 // 2, GIB * 5 // 2)
    assert split_overhead(-5) == (0, 0)
