"""Reports of the ranks, reduced to the figures of a candidate."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_report, make_workload

from raysweep.measurement import Figures, has_settled, interquartile_range, reduce_reports


def _reduced(*changes: dict[str, Any], global_batch_size: int = 8) -> Figures:
    reports = [make_report(rank, **each) for rank, each in enumerate(changes)]
    workload = make_workload(world_size=len(changes))
    return reduce_reports(reports[::-1], workload=workload, global_batch_size=global_batch_size)


def test_rates_are_the_global_batch_over_the_median_step() -> None:
    figures = _reduced({"step_times_s": (0.04, 0.05, 0.5)}, {})
    assert figures.step_time_s_median == 0.05
    assert figures.samples_per_s == pytest.approx(160)
    assert figures.tokens_per_s == pytest.approx(160 * 16)
    assert figures.measured_steps == 3


def test_the_fullest_rank_gives_the_peak_its_phase_and_its_place() -> None:
    figures = _reduced({"peak_memory_bytes": 900}, {"peak_memory_bytes": 1200, "peak_phase": "step"})
    assert (figures.peak_memory_bytes, figures.peak_phase) == (1200, "step")
    assert (figures.peak_rank, figures.peak_node) == (1, "n1")
    assert (figures.nodes, figures.worker_pids) == (("n0", "n1"), (100, 101))


def test_losses_are_means_and_cpu_time_is_summed() -> None:
    figures = _reduced({"first_loss": 5.0, "loss_at_step_5": 4.0}, {"first_loss": 6.0, "loss_at_step_5": 4.5})
    assert (figures.first_loss, figures.loss_at_step_5) == (5.5, 4.25)
    assert figures.cpu_time_s == pytest.approx(0.8)


def test_a_loss_that_one_rank_lacks_is_not_known() -> None:
    assert _reduced({"loss_at_step_5": None}, {}).loss_at_step_5 is None


def test_what_happened_to_one_rank_marks_the_candidate() -> None:
    figures = _reduced({}, {"allocation_retries": 1, "cycled_data": True, "skipped_steps": 2, "reserved_bytes": 9})
    assert figures.memory_pressure and figures.cycled_data
    assert (figures.skipped_steps, figures.reserved_bytes, figures.device_used_bytes) == (2, 9, None)


def test_a_missing_rank_is_not_averaged_away() -> None:
    with pytest.raises(AssertionError, match="one report a rank"):
        reduce_reports([make_report(0)], workload=make_workload(world_size=2), global_batch_size=8)


def test_interquartile_range() -> None:
    assert interquartile_range([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
    assert interquartile_range([1.0]) == 0.0


@pytest.mark.parametrize(
    ("times", "settled"),
    [((9.0, 1.0, 1.04, 1.05), True), ((1.0, 1.06, 1.0), False), ((1.0, 1.0), False), ((1.0, 1.0, 1.0, 2.0), False)],
)
def test_settled_means_the_last_three_are_within_five_percent(times: tuple[float, ...], settled: bool) -> None:
    assert has_settled(times, last=3, tolerance=0.05) is settled
