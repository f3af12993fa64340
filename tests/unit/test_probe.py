"""The micro-benchmark: what it shows, how it becomes a prior, and that it is kept once a group."""

from __future__ import annotations

import json

import pytest
from builders import make_candidate, make_measurement, make_report, make_request, make_workload

from raysweep.launch.records import Answer, measurement_of
from raysweep.probe import Probe, alpha_beta
from raysweep.results.schema import measurements_table
from raysweep.search.guided import GuidedSearcher
from raysweep.search.prior import ASSUMED_RATES, REACHED_SHARE, REDUCED_SHARE, rates
from raysweep.search.prospect import Prospect
from raysweep.serde import from_dict, to_dict
from raysweep.step_work import step_work
from raysweep.trial import Measurement
from raysweep.zero_settings import ZeroSettings

PROBE = Probe(
    matmul_s=((128, 2 * 128**3 / 1e10), (256, 2 * 256**3 / 4e10)),
    copy_s=((1_000_000, 1e-4), (64_000_000, 0.0128)),
    all_reduce_s=((1000, 1e-4 + 1e-6), (1_000_000, 1e-4 + 1e-3)),
    all_gather_s=((1000, 2e-4 + 5e-7), (1_000_000, 2e-4 + 5e-4)),
)


def test_the_best_product_and_the_largest_copy_count() -> None:
    assert PROBE.flop_per_s == pytest.approx(4e10)
    assert PROBE.memory_bytes_per_s == pytest.approx(1e10)


def test_a_line_is_found_again_and_never_below_zero() -> None:
    assert alpha_beta(PROBE.all_reduce_s) == pytest.approx((1e-4, 1e-9))
    assert alpha_beta(((1000, 3e-6), (2000, 6e-6), (4000, 12e-6))) == pytest.approx((0, 3e-9), abs=1e-12)
    falling = alpha_beta(((1000, 2e-3), (1_000_000, 1e-3)))
    assert falling[0] > 0 and falling[1] == 0.0


def test_the_prior_has_the_rates_that_were_measured() -> None:
    found = rates("cpu", [PROBE], world_size=4)
    assert found.compute_flops == pytest.approx(REACHED_SHARE * 4e10)
    assert found.reduce_bytes == pytest.approx(REDUCED_SHARE * 2 * 3 / 4 / 1e-9)
    assert found.gather_bytes == pytest.approx(3 / 4 / 5e-10)
    assert found.collectives == pytest.approx(1e4)
    assert found.block_passes == pytest.approx(ASSUMED_RATES["cpu"].block_passes)
    assert rates("cpu", [], world_size=4) == ASSUMED_RATES["cpu"]


def test_a_lone_worker_says_nothing_of_links() -> None:
    alone = Probe(matmul_s=PROBE.matmul_s, copy_s=PROBE.copy_s)
    assert rates("cpu", [alone], world_size=1).reduce_bytes == pytest.approx(ASSUMED_RATES["cpu"].reduce_bytes)


def test_beside_groups_with_links_a_lone_worker_does_not_count() -> None:
    alone = Probe(matmul_s=((128, 1.0),), copy_s=PROBE.copy_s)
    assert rates("cpu", [alone, PROBE], world_size=4) == rates("cpu", [PROBE], world_size=4)


def _launch(position: int) -> Measurement:
    return measurement_of(
        make_request(),
        Answer(
            reports=[make_report(rank) for rank in range(2)],
            failures=[],
            group_id="g",
            position_in_group=position,
            ranks=[{"pid": 1, "node": "n", "log_path": "", "probe": to_dict(PROBE)}],
            started_at="",
            wall_s=1.0,
        ),
    )


def test_it_is_recorded_with_the_first_launch_of_a_group_and_survives_the_journal() -> None:
    first, second = _launch(1), _launch(2)
    assert first.probe == PROBE and second.probe is None
    assert from_dict(Measurement, json.loads(json.dumps(to_dict(first)))) == first
    column = measurements_table([first, second]).column("probe").to_pylist()
    assert from_dict(Probe, json.loads(column[0])) == PROBE and column[1] is None
    older = to_dict(second)
    del older["probe"]
    assert from_dict(Measurement, older) == second


def test_probes_guide_a_search_in_whatever_order_they_come() -> None:
    workload = make_workload()
    candidates = [make_candidate(zero_stage=s, micro_batch_size_per_gpu=b) for s in range(4) for b in (1, 2, 4)]
    prospects = [
        Prospect(candidate=each, work=step_work(each, workload, ZeroSettings()), global_batch_size=8)
        for each in candidates
    ]
    other = Probe(matmul_s=((128, 1e-4),), copy_s=((1_000_000, 1e-3),))

    def proposes(*launches: tuple[str, Probe]) -> list[float]:
        searcher = GuidedSearcher(candidates, prospects=prospects, world_size=2)
        for place, (group_id, probe) in enumerate(launches):
            measurement = make_measurement(candidates[place].candidate_id)
            searcher.learn(
                candidates[0],
                from_dict(Measurement, to_dict(measurement) | {"group_id": group_id, "probe": to_dict(probe)}),
            )
        return list(searcher._model.fit({}).step_time_s)

    assert proposes(("a", PROBE), ("b", other)) == proposes(("b", other), ("a", PROBE))
    assert proposes(("a", PROBE)) != proposes(("a", other))
