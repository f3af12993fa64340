"""Attention, torch.compile and the number of workers as axes: which candidates there are, and what each becomes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_workload, write_sweep
from results_builders import completed

from raysweep.candidate import Candidate
from raysweep.cli.plan import render_plan
from raysweep.dominance import needs_no_less_memory
from raysweep.errors import ConfigError
from raysweep.memory import ZeroSettings, estimate_memory
from raysweep.plan import deadline_s, make_plan, search_order
from raysweep.results.records import TrialRecord, derive_records, scaling_efficiencies
from raysweep.results.report import render_report
from raysweep.results.scaling import scaling
from raysweep.results.schema import records_of, trials_table
from raysweep.search.requests import RequestMaker
from raysweep.search.searchers import make_searcher, prospects
from raysweep.serde import from_dict, to_dict
from raysweep.space import SearchSpace, group_key
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import PlanRow, SkipRule, SweepStart, TrialStatus

PRICED = {
    "space.world_size": [1, 4],
    "objective": {"goal": "samples_per_currency_unit", "price_per_worker_hour": 2.0},
}
HF = {"kind": "hf", "config_class": "LlamaConfig"}


def swept(folder: Path, **changes: Any) -> Sweep:
    """A sweep on at most four workers."""
    return load_sweep(write_sweep(folder, **{"workers.count": 4} | changes))


def rows_by_id(sweep: Sweep) -> dict[str, PlanRow]:
    return {row.candidate.candidate_id: row for row in make_plan(sweep).rows}


def test_ids_name_what_is_not_as_in_the_workload() -> None:
    assert make_candidate().candidate_id == "s2-k0-b2-g1"
    changed = make_candidate(world_size=1, attn_implementation="eager", torch_compile=True, deepspeed={"a": 1})
    assert changed.candidate_id.startswith("s2-k0-b2-g1-w1-eager-compile-")
    assert from_dict(Candidate, to_dict(changed)) == changed


def test_a_candidate_of_an_older_journal_is_read() -> None:
    plain = {name: value for name, value in to_dict(make_candidate()).items() if name not in make_candidate().program}
    for name in ("attn_implementation", "torch_compile", "world_size"):
        plain.pop(name, None)
    assert from_dict(Candidate, plain) == make_candidate()


@pytest.mark.parametrize("change", [{"world_size": 1}, {"attn_implementation": "eager"}, {"torch_compile": True}])
def test_each_starts_a_group_of_its_own_and_proves_nothing_of_the_others_memory(change: dict[str, Any]) -> None:
    small, large = make_candidate(), make_candidate(micro_batch_size_per_gpu=4)
    assert group_key(replace(small, **change)) != group_key(small)
    assert needs_no_less_memory(large, small) and not needs_no_less_memory(replace(large, **change), small)


def test_all_workers_are_the_default_and_the_accumulation_follows_from_the_others(tmp_path: Path) -> None:
    rows = rows_by_id(swept(tmp_path, **{"space.world_size": [1, 2, 4], "space.micro_batch_size_per_gpu": [2]}))
    assert {"s0-k0-b2-g1", "s0-k0-b2-g2-w2", "s0-k0-b2-g4-w1"} <= set(rows)
    assert {row.global_batch_size for row in rows.values()} == {8}
    assert rows["s0-k0-b2-g4-w1"].world_size == 1 and rows["s0-k0-b2-g1"].world_size == 4
    assert len(rows) == 3 * 8


def test_a_number_of_workers_that_cannot_share_the_batch_is_skipped_and_one_is_enough(tmp_path: Path) -> None:
    changes = {"space.world_size": [3, 4], "space.micro_batch_size_per_gpu": [2], "space.zero_stage": [1]}
    rows = rows_by_id(swept(tmp_path, **changes))
    skipped = [row for row in rows.values() if row.skip_rule is SkipRule.NO_LEGAL_BATCH]
    assert {row.world_size for row in skipped} == {3} and "x 3 workers does not divide" in skipped[0].reason
    with pytest.raises(ConfigError, match="3 workers cannot share it equally"):
        swept(tmp_path, **changes | {"space.world_size": [3]})


def test_fewer_workers_hold_larger_shards_and_send_less(tmp_path: Path) -> None:
    changes = {"space.world_size": [1, 4], "space.zero_stage": [3], "space.activation_checkpoint_interval": [0]}
    rows = rows_by_id(swept(tmp_path, **changes | {"space.micro_batch_size_per_gpu": [1], "global_batch_size": 4}))
    alone, four = rows["s3-k0-b1-g4-w1"], rows["s3-k0-b1-g1"]
    assert alone.estimated_sent_bytes_per_step == 0 < (four.estimated_sent_bytes_per_step or 0)
    states = [row.estimated_peak_terms["optimizer_states"] for row in (alone, four)]
    assert states[0] == pytest.approx(4 * states[1], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space.world_size": [8]}, r"no candidate can have more workers \(nearest valid: 4\)"),
        ({"space.attn_implementation": ["eager"]}, "is for models of kind hf"),
        ({"model": HF, "space.attn_implementation": ["sdp"]}, "'eager', 'sdpa'"),
        ({"model": HF | {"attn_implementation": "eager"}, "space.attn_implementation": ["sdpa"]}, "give one of them"),
        ({"model": {"kind": "loop", "loop": "a:b"}, "space.torch_compile": [True]}, "is not for kind loop"),
        ({"space.zero_stage": [3], "space.torch_compile": [True]}, "no stage of the space"),
        (PRICED | {"search": {"method": "guided"}}, "set search.method to grid or random"),
        (PRICED | {"search": {"method": "grid", "racing": True}}, "and no racing"),
    ],
)
def test_an_axis_that_cannot_be_right_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        swept(tmp_path, **changes)


def test_a_grid_over_numbers_of_workers_may_go_by_price(tmp_path: Path) -> None:
    assert len(make_plan(swept(tmp_path, **PRICED)).rows) == 32


def test_constraints_know_them_and_hpz_needs_a_divisor() -> None:
    space = SearchSpace(
        zero_stage=(2, 3),
        activation_checkpoint_interval=(0,),
        micro_batch_size_per_gpu=(1,),
        zero_hpz_partition_size=(1, 2),
        torch_compile=(False, True),
        world_size=(1, 2),
        constraints=("world_size == 2 or not torch_compile",),
    )
    found = [candidate for candidate, _ in space.candidates(global_batch_size=4, world_size=2)]
    assert not [each for each in found if each.torch_compile and (each.zero_stage == 3 or each.world_size == 1)]
    assert [each.world_size for each in found if each.deepspeed] == [None]


def test_a_launch_has_the_candidates_own_workers_and_attention(tmp_path: Path) -> None:
    changes = {"model": HF, "space.attn_implementation": ["eager", "sdpa"], "space.world_size": [2]}
    sweep = swept(tmp_path, **changes)
    request = RequestMaker(sweep=sweep, memory_budget_bytes=None).make(make_plan(sweep).admitted[0])
    assert request.workload.world_size == 2 and request.workload.model["attn_implementation"] == "eager"
    assert sweep.workload.model["attn_implementation"] is None and sweep.workload.world_size == 4


def test_the_compiler_has_time_of_its_own_and_makes_the_memory_less_certain(tmp_path: Path) -> None:
    sweep = swept(tmp_path, **{"space.torch_compile": [True], "space.zero_stage": [1]})
    compiled = make_plan(sweep).admitted[0]
    assert deadline_s(compiled, sweep) > deadline_s(replace(compiled, torch_compile=False), sweep) + 500
    workload, settings = make_workload(), ZeroSettings()
    plain, other = (estimate_memory(make_candidate(torch_compile=each), workload, settings) for each in (False, True))
    assert plain.peak_bytes == other.peak_bytes and plain.lower_bound_bytes > other.lower_bound_bytes > 0


def test_candidates_that_can_share_a_process_come_together(tmp_path: Path) -> None:
    sweep = swept(tmp_path, **{"space.world_size": [1, 2, 4]})
    keys = [group_key(candidate) for candidate in search_order(sweep, make_plan(sweep))]
    changes = sum(one != other for one, other in pairwise(keys))
    assert changes == 2 and make_plan(sweep).cost.group_starts == 3 + 3


def test_a_guided_search_counts_each_candidates_own_work_and_proposes_all(tmp_path: Path) -> None:
    changes = {"space.world_size": [1, 4], "space.torch_compile": [False, True], "search": {"method": "guided"}}
    sweep = swept(tmp_path, **changes)
    plan = make_plan(sweep)
    by_size = {each.candidate.world_size: each for each in prospects(sweep, plan) if each.candidate.zero_stage == 1}
    assert by_size[1].work.reduce_bytes == 0 < by_size[None].work.reduce_bytes
    searcher = make_searcher(sweep, plan, {})
    proposed = searcher.suggest("1")
    assert isinstance(proposed, dict) and proposed["candidate_id"] in {each.candidate_id for each in plan.admitted}


def test_a_plan_lists_them(tmp_path: Path) -> None:
    sweep = swept(tmp_path, **{"space.world_size": [1, 4], "space.torch_compile": [True], "space.zero_stage": [1]})
    assert "s1-k0-b2-g4-w1-compile" in render_plan(sweep, make_plan(sweep))


def scaled_records(rates: dict[int, float]) -> list[TrialRecord]:
    """One candidate a number of workers, the last number being that of the sweep."""
    largest = max(rates)
    candidates = {size: make_candidate(world_size=None if size == largest else size) for size in rates}
    rows = [
        PlanRow(candidate=candidate, world_size=size, global_batch_size=8) for size, candidate in candidates.items()
    ]
    start = SweepStart(
        sweep_sha256="", workload=make_workload(), base_ds_config={}, memory_budget_bytes=None, plan_rows=tuple(rows)
    )
    launches = [completed(candidates[size].candidate_id, rate) for size, rate in rates.items()]
    return derive_records(start, measurements=launches)


def test_efficiency_is_against_the_fewest_workers() -> None:
    records = scaled_records({1: 10.0, 2: 18.0, 4: 30.0})
    assert [each.scaling_efficiency for each in records] == [1.0, pytest.approx(0.9), pytest.approx(0.75)]
    assert [each.world_size for each in scaling(records)] == [1, 2, 4]
    shown = render_report(records, selection=None)
    assert "By the number of workers" in shown and "75%" in shown
    assert records_of(trials_table(records)) == records


def test_with_one_number_of_workers_nothing_is_told_of_scaling() -> None:
    records = scaled_records({2: 10.0})
    assert scaling_efficiencies(records) == {} and records[0].scaling_efficiency is None
    assert "By the number of workers" not in render_report(records, selection=None)
    assert records[0].status is TrialStatus.COMPLETED
