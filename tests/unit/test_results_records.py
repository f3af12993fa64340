"""Every candidate of the plan gets a record, whatever became of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from results_builders import MIB, WORKLOAD, completed, confirmed, failed, ident, plan_row, records, sweep

from raysweep.results.parity import Losses, loss_parity
from raysweep.results.records import derive_records
from raysweep.trial import FailureKind, GroupEnd, MemoryKind, Phase, RankFailure, SkipRule, TrialStatus


def test_a_completed_candidate_has_its_figures() -> None:
    end = GroupEnd(group_id="g1", reason="search ended", started_at="", ended_at="")
    start = sweep(plan_row(1, estimated_memory_bytes=49 * MIB))
    (record,) = derive_records(start, measurements=[completed(ident(1))], group_ends=[end])
    assert (record.status, record.samples_per_s, record.recomputed_blocks) == (TrialStatus.COMPLETED, 100.0, 4)
    assert (record.peak_memory_bytes, record.estimated_memory_bytes) == (50 * MIB, 49 * MIB)
    assert record.memory_budget_bytes == 100 * MIB
    assert (record.group_end_reason, record.peak_rank, record.peak_node) == ("search ended", 1, "n1")
    assert (record.loss_parity, record.confirmed, record.versions) == (None, False, '{"torch":"2.13.0"}')


def test_plan_verdicts_stand_for_candidates_never_launched() -> None:
    start = sweep(
        plan_row(1, status=TrialStatus.PRUNED, reason="needs 9 GiB"),
        plan_row(2, status=TrialStatus.SKIPPED, skip_rule=SkipRule.NO_LEGAL_BATCH, reason="16 is no multiple"),
        plan_row(4),
    )
    pruned, illegal, unseen = derive_records(start, measurements=[], stop_reason="budget of 12 trials spent")
    assert (pruned.status, pruned.reason) == (TrialStatus.PRUNED, "needs 9 GiB")
    assert (illegal.status, illegal.skip_rule) == (TrialStatus.SKIPPED, SkipRule.NO_LEGAL_BATCH)
    assert (unseen.status, unseen.skip_rule) == (TrialStatus.SKIPPED, SkipRule.SEARCH_STOPPED)
    assert unseen.reason == "not launched: budget of 12 trials spent"


def test_an_oom_keeps_peak_rank_and_recomputed_blocks() -> None:
    failure = RankFailure(rank=1, node="n1", data={"recomputed_blocks": 4})
    oom = failed(
        ident(1),
        TrialStatus.OOM,
        memory_kind=MemoryKind.DEVICE,
        reason="rank 1 on n1: out of memory",
        peak_memory_bytes=150 * MIB,
        failures=(failure,),
    )
    (record,) = records(oom)
    assert (record.status, record.memory_kind, record.samples_per_s) == (TrialStatus.OOM, MemoryKind.DEVICE, None)
    assert (record.peak_memory_bytes, record.peak_rank, record.peak_node) == (150 * MIB, 1, "n1")
    assert record.recomputed_blocks == 4


@pytest.mark.parametrize("status", [TrialStatus.FAILED, TrialStatus.TIMED_OUT, TrialStatus.STOPPED, TrialStatus.OOM])
def test_every_row_without_figures_has_a_reason(status: TrialStatus) -> None:
    kind = FailureKind.HANG if status is TrialStatus.FAILED else None
    (record,) = records(failed(ident(1), status, failure_kind=kind))
    assert (record.status, record.failure_kind) == (status, kind)
    assert record.reason == f"{status}, no message"


def test_a_later_launch_replaces_an_earlier_one() -> None:
    died = failed(ident(1), TrialStatus.FAILED, failure_kind=FailureKind.INFRASTRUCTURE, reason="killed")
    (record,) = records(died, completed(ident(1), 90.0))
    assert (record.status, record.samples_per_s, record.reason) == (TrialStatus.COMPLETED, 90.0, "")


def test_confirmed_figures_are_a_geometric_mean_and_its_interval() -> None:
    (record,) = records(completed(ident(1)), *confirmed(ident(1), (100.0, 110.0, 121.0)))
    assert record.confirmed
    assert record.confirmed_samples_per_s == pytest.approx(110.0)
    # s = ln 1.1; half width 4.303 s / sqrt(3) = 2.4843 x 0.09531 = 0.23678
    assert record.confirmed_samples_per_s_low == pytest.approx(110.0 / 1.26716, rel=1e-4)
    assert record.confirmed_samples_per_s_high == pytest.approx(110.0 * 1.26716, rel=1e-4)
    assert record.samples_per_s == 100.0


def test_two_rounds_are_no_confirmation_and_a_failed_one_demotes() -> None:
    broken = failed(ident(2), TrialStatus.OOM, reason="out of memory", round=3, phase=Phase.CONFIRM)
    first, second = records(
        completed(ident(1)),
        completed(ident(2)),
        *confirmed(ident(1), (100.0, 101.0)),
        *confirmed(ident(2), (100.0, 101.0)),
        broken,
    )
    assert not first.confirmed and first.confirmed_samples_per_s is None
    assert not second.confirmed
    assert second.reason == "demoted in confirmation: OOM in round 3: out of memory"


def losses(*first_losses: float, later: float | None = 4.0, batch: int = 16) -> list[Losses]:
    return [
        Losses(candidate_id=str(place), global_batch_size=batch, first_loss=loss, loss_at_step_5=later)
        for place, loss in enumerate(first_losses)
    ]


def test_parity_accuses_the_one_that_differs() -> None:
    assert loss_parity(losses(5.5, 5.5, 5.5, 5.6), tolerance=0.01) == {"0": True, "1": True, "2": True, "3": False}
    assert loss_parity(losses(5.5, 5.5, 5.6), tolerance=0.01) == {"0": True, "1": True, "2": False}


def test_parity_tolerance_depends_on_precision() -> None:
    shift = [completed(ident(1)), completed(ident(2)), completed(ident(4), first_loss=5.5 * 1.005)]
    assert [each.loss_parity for each in records(*shift)] == [True, True, True]
    rows = [plan_row(number) for number in (1, 2, 4)]
    exact = derive_records(sweep(*rows, workload=replace(WORKLOAD, precision="fp32")), measurements=shift)
    assert [each.loss_parity for each in exact] == [True, True, False]


def test_parity_looks_at_step_5_too() -> None:
    # DeepSpeed's stage 0 constructor step: 3.362 against 3.018 after seven steps.
    wrong = Losses(candidate_id="x", global_batch_size=16, first_loss=5.5, loss_at_step_5=3.362)
    verdicts = loss_parity([*losses(5.5, 5.5, later=3.018), wrong], tolerance=0.01)
    assert verdicts == {"0": True, "1": True, "x": False}


def test_parity_compares_equal_global_batches_only() -> None:
    assert loss_parity([*losses(5.5, 5.5), *losses(7.0, batch=32)][2:], tolerance=0.01) == {"0": None}
    other = Losses(candidate_id="x", global_batch_size=32, first_loss=7.0, loss_at_step_5=None)
    assert loss_parity([*losses(5.5, 5.5), other], tolerance=0.01) == {"0": True, "1": True, "x": None}


def test_parity_compares_equal_splits_only_where_the_forward_pass_is_random() -> None:
    mine, other = (
        Losses(candidate_id=str(split), global_batch_size=16, first_loss=loss, loss_at_step_5=None, split=split)
        for split, loss in ((1, 5.5), (2, 5.7))
    )
    assert loss_parity([mine, other], tolerance=0.01) == {"1": None, "2": None}


def test_what_a_bound_ruled_out_is_told_from_what_was_left_when_the_search_stopped() -> None:
    start = sweep(plan_row(1), plan_row(2), plan_row(4))
    rows = derive_records(
        start,
        measurements=[completed(ident(1))],
        stop_reason="the budget of 1 trials was spent",
        bounded={ident(2): "not launched: at most 90 samples/s"},
    )
    assert [row.skip_rule for row in rows] == [None, SkipRule.THROUGHPUT_BOUND, SkipRule.SEARCH_STOPPED]
    assert rows[1].reason == "not launched: at most 90 samples/s"
