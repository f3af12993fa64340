"""Stages and intervals side by side: which are shown, and where a peak comes from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from results_builders import MIB

from raysweep.results.records import TrialRecord
from raysweep.results.side_by_side import alike_but_for_stage_and_interval, difference, render_side_by_side
from raysweep.trial import TrialStatus


def record(stage: int, interval: int = 0, *, rate: float = 10.0, peak_mib: int = 100, **terms_mib: int) -> TrialRecord:
    return TrialRecord(
        candidate_id=f"s{stage}-k{interval}-{rate:.0f}",
        zero_stage=stage,
        activation_checkpoint_interval=interval,
        micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=1,
        world_size=2,
        global_batch_size=2,
        status=TrialStatus.COMPLETED,
        samples_per_s=rate,
        peak_memory_bytes=peak_mib * MIB,
        estimated_peak_terms=json.dumps({term: size * MIB for term, size in terms_mib.items()}),
        estimated_sent_bytes_per_step=80 * MIB,
    )


def lost(**values: Any) -> TrialRecord:
    fields = {name: getattr(record(2), name) for name in TrialRecord.__slots__}
    return TrialRecord(**fields | {"status": TrialStatus.OOM, "samples_per_s": None, "reason": "too large"} | values)


def test_those_of_one_micro_batch_are_shown_of_which_most_were_measured() -> None:
    shown = alike_but_for_stage_and_interval(
        [record(3, 1), record(0), lost(), record(3), replace(record(2), micro_batch_size_per_gpu=2)]
    )
    assert [each.candidate_id for each in shown] == ["s0-k0-10", "s3-k0-10", "s3-k1-10"]


def test_of_further_axes_the_faster_is_shown() -> None:
    assert [
        each.samples_per_s for each in alike_but_for_stage_and_interval([record(0, rate=7), record(0, rate=5)])
    ] == [7]


def test_a_peak_that_hardly_differs_is_not_explained() -> None:
    assert "Peak against" not in render_side_by_side([record(0, peak_mib=100), record(1, peak_mib=101)])


def test_a_difference_names_its_largest_terms_and_leaves_out_small_ones() -> None:
    base = record(0, peak_mib=100, optimizer_states=60, activations=40)
    sharded = record(3, peak_mib=120, optimizer_states=30, activations=39, reduce_bucket=51)
    told = difference(sharded, base)
    assert told == "+20.0 MiB (reduce_bucket +51.0 MiB, optimizer_states -30.0 MiB)"


def test_one_stage_alone_is_not_compared() -> None:
    assert render_side_by_side([record(1), lost()]) == ""
    text = render_side_by_side([record(0, activations=100), record(1, peak_mib=70, activations=70)])
    assert "s1-k0-10: -30.0 MiB (activations -30.0 MiB)" in text and "80.0 MiB" in text
