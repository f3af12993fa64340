"""Which micro-batches are traced, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import make_candidate

from raysweep.trace_families import families, family_key, interpolated, next_micro_batches


def traced_until_done(
    members: list[int], peaks: Callable[[int], dict[str, int]], *, are_alike: bool = False
) -> dict[int, dict[str, int]]:
    """Trace as the driver does: ask, answer, ask again."""
    known: dict[int, dict[str, int]] = {}
    while wanted := next_micro_batches(members, known, is_sure=lambda low, high: are_alike):
        assert not set(wanted) & set(known), "nothing is traced twice"
        known |= {micro_batch: peaks(micro_batch) for micro_batch in wanted}
    return known


def test_three_traces_do_where_the_third_lies_on_the_line() -> None:
    known = traced_until_done(list(range(1, 33)), lambda b: {"forward": 100 + 7 * b, "step": 500})
    assert sorted(known) == [1, 17, 32]


def test_two_traces_do_where_their_allocations_are_alike() -> None:
    assert sorted(traced_until_done([1, 2, 4, 8], lambda b: {"step": b * b}, are_alike=True)) == [1, 8]


def test_a_bend_is_found_and_its_neighbours_are_traced() -> None:
    def peaks(micro_batch: int) -> dict[str, int]:
        return {"backward": max(1000 + 10 * micro_batch, 700 + 50 * micro_batch)}

    members = [1, 2, 4, 6, 8, 12, 16, 24, 32]
    known = traced_until_done(members, peaks)
    for member in members:
        found = (
            known[member]
            if member in known
            else {
                phase: sum(kinds.values())
                for phase, kinds in interpolated(member, {b: {"backward": p} for b, p in known.items()}).items()
            }
        )
        assert found == pytest.approx(peaks(member), rel=1e-3)


def test_small_families_are_traced_whole() -> None:
    for members in ([4], [1, 8], [1, 2, 4]):
        assert sorted(traced_until_done(members, lambda b: {"step": b * b})) == members


def test_kinds_are_interpolated_one_by_one() -> None:
    known = {
        2: {"forward": {"activations": 20, "parameters": 5}},
        6: {"forward": {"activations": 60, "parameters": 5, "other": 8}},
    }
    assert interpolated(4, known) == {"forward": {"activations": 40, "other": 4, "parameters": 5}}


def test_a_family_shares_all_but_the_micro_batch() -> None:
    one = make_candidate(micro_batch_size_per_gpu=2, gradient_accumulation_steps=4)
    assert family_key(one) == family_key(make_candidate(micro_batch_size_per_gpu=4, gradient_accumulation_steps=2))
    assert family_key(one) != family_key(make_candidate(micro_batch_size_per_gpu=8, gradient_accumulation_steps=1))
    for change in ({"zero_stage": 3}, {"activation_checkpoint_interval": 1}, {"deepspeed": {"x": 1}}):
        assert family_key(one) != family_key(make_candidate(gradient_accumulation_steps=4, **change))
    members = families([make_candidate(micro_batch_size_per_gpu=each) for each in (8, 1, 4, 1)])
    assert list(members.values()) == [[1, 4, 8]]
