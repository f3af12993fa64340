"""From the traces of ranks to the estimate of a candidate."""

from __future__ import annotations

from typing import Any

import pytest

from raysweep.memory import RELATIVE_BAND
from raysweep.trace import RankTrace, StandIn
from raysweep.trace_estimate import INTERPOLATED, TRACE_BAND, TRACED, estimate_from, fullest_terms


def rank_trace(rank: int, **kinds: dict[str, int]) -> RankTrace:
    phases: dict[str, dict[str, int]] = {"forward": {}, "backward": {}, "step": {}} | kinds
    return RankTrace(
        rank=rank,
        phase_peaks_bytes={phase: sum(terms.values()) for phase, terms in phases.items()},
        phase_kinds_bytes=phases,
    )


RANKS = [
    rank_trace(0, forward={"activations": 50}, backward={"gradients": 70}, step={"optimizer_temporaries": 60, "x": 30}),
    rank_trace(1, forward={"activations": 50}, backward={"gradients": 95}, step={"optimizer_temporaries": 55, "x": 30}),
]


def estimate(device: str = "cpu", **changes: Any) -> Any:
    options = {"is_interpolated": False, "is_doubtful": False} | changes
    return estimate_from(
        fullest_terms([rank.phase_kinds_bytes for rank in RANKS], device=device), device=device, **options
    )


def test_the_fullest_rank_of_each_phase_counts() -> None:
    found = estimate()
    assert found.peak_bytes == 95 and found.peak_phase == "backward"
    assert sum(found.phases["step"].values()) == 90
    assert (found.source, found.band) == (TRACED, TRACE_BAND["cpu"])


def test_a_cuda_target_has_no_optimizer_temporaries_and_a_wide_band() -> None:
    found = estimate("cuda")
    assert found.phases["step"] == {"x": 30}
    assert found.lower_bound_bytes == pytest.approx(95 / 1.25)


def test_made_up_numbers_of_the_models_code_keep_the_closed_forms_band() -> None:
    assert estimate(is_doubtful=True).band == RELATIVE_BAND["cpu"]
    assert estimate(is_interpolated=True).source == INTERPOLATED


def test_only_unexpected_stand_ins_are_warnings() -> None:
    stand_ins = [
        StandIn(operator="item", place="a.py:1 f", value="1.0", count=1, expected=expected)
        for expected in (True, False)
    ]
    trace = RankTrace(rank=0, stand_ins=tuple(stand_ins))
    assert trace.warnings == (stand_ins[1],)
