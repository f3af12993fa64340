"""A step's allocations, replayed and moved to another micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raysweep.allocations import AllocationLog, are_alike, between, peak_terms
from raysweep.estimate.fake_log import StepLog

NAMES = ("states", "activations")


def log(*events: int, kinds: Sequence[int], begins: Sequence[tuple[str, int]]) -> AllocationLog:
    return AllocationLog(events=events, kinds=tuple(kinds), kind_names=NAMES, phase_begins=tuple(begins))


def step(batch: int) -> AllocationLog:
    """100 bytes held; two activations in forward, of which backward frees one before it takes another."""
    return log(
        100,
        10 * batch,
        30 * batch,
        -2,
        50,
        -4,
        -3,
        kinds=(0, 1, 1, 0),
        begins=(("forward", 1), ("backward", 3), ("step", 6)),
    )


def test_a_phase_peaks_at_the_most_that_is_alive_at_once() -> None:
    assert peak_terms(step(1)) == {
        "forward": {"states": 100, "activations": 40},
        "backward": {"states": 150, "activations": 30},
        "step": {"states": 100, "activations": 30},
    }


def test_a_phase_that_comes_twice_has_one_peak() -> None:
    twice = log(10, 5, -2, 20, kinds=(0, 0, 1), begins=(("forward", 1), ("backward", 2), ("forward", 3)))
    assert peak_terms(twice)["forward"] == {"states": 10, "activations": 20}
    assert peak_terms(twice)["backward"] == {"states": 15}


def test_kinds_that_are_left_out_do_not_decide_the_peak() -> None:
    assert peak_terms(step(1), left_out=("activations",))["forward"] == {"states": 100}


def test_a_micro_batch_between_two_follows_from_them() -> None:
    assert are_alike(step(2), step(8), low_batch=2, high_batch=8)
    for batch in (3, 4, 7):
        assert between(step(2), step(8), low_batch=2, high_batch=8, batch=batch) == step(batch)


def test_other_growth_or_another_order_tells_nothing() -> None:
    def grown(size_bytes: int) -> AllocationLog:
        return log(size_bytes, kinds=(1,), begins=())

    assert not are_alike(grown(2 * 2), grown(8 * 8), low_batch=2, high_batch=8)
    assert not are_alike(grown(2 + 1), grown(8 + 1), low_batch=2, high_batch=8)
    assert not are_alike(grown(5), replace(grown(5), kinds=(0,)), low_batch=2, high_batch=8)
    assert not are_alike(step(2), log(1, kinds=(0,), begins=()), low_batch=2, high_batch=8)


def test_what_only_passes_is_left_out_of_a_log_and_what_stays_is_renumbered() -> None:
    written = StepLog()
    written.allocate(7, 100, "states")
    with written.passing():
        written.allocate(1, 4, "activations")
        written.allocate(2, 40, "activations")
        written.free(1)
        written.free(7)
    written.begin_phase("backward")
    written.free(2)
    kept = written.closed()
    assert kept.events == (100, 40, -1, -2)
    assert kept.kinds == (0, 1) and kept.phase_begins == (("backward", 3),)
