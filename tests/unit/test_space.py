"""The candidates of a space, under a fixed and under a free global batch."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_candidate

from raysweep.errors import ConfigError
from raysweep.space import SearchSpace, group_key


def _space(**changes: Any) -> SearchSpace:
    axes = {
        "zero_stage": (0, 1, 2, 3),
        "activation_checkpoint_interval": (0, 1, 2),
        "micro_batch_size_per_gpu": (1, 2, 4, 8),
    }
    return SearchSpace(**axes | changes)


def test_every_combination_is_a_candidate() -> None:
    found = list(_space().candidates(global_batch_size=16, world_size=2))
    assert len({candidate.candidate_id for candidate, _ in found}) == 48
    assert all(legal for _, legal in found)
    assert {c.micro_batch_size_per_gpu * c.gradient_accumulation_steps * 2 for c, _ in found} == {16}


def test_a_micro_batch_that_does_not_divide_is_kept_as_not_legal() -> None:
    space = _space(zero_stage=(0,), activation_checkpoint_interval=(0,), micro_batch_size_per_gpu=(1, 3))
    found = [(c.candidate_id, legal) for c, legal in space.candidates(global_batch_size=8, world_size=2)]
    assert found == [("s0-k0-b1-g4", True), ("s0-k0-b3-g1", False)]


def test_a_free_batch_takes_every_accumulation() -> None:
    space = _space(zero_stage=(0,), activation_checkpoint_interval=(0,), gradient_accumulation_steps=(1, 4))
    assert len(list(space.candidates(global_batch_size=None, world_size=2))) == 8


def test_further_axes_multiply_the_space() -> None:
    space = _space(deepspeed={"zero_optimization.reduce_bucket_size": (1, 2), "a.b": ("x", "y", "z")})
    found = [candidate for candidate, _ in space.candidates(global_batch_size=16, world_size=2)]
    assert len(found) == len({candidate.candidate_id for candidate in found}) == 48 * 6
    assert found[0].deepspeed == {"zero_optimization.reduce_bucket_size": 1, "a.b": "x"}


def test_256_on_seven_workers_names_the_nearest_totals() -> None:
    with pytest.raises(ConfigError) as caught:
        _space().check_global_batch(global_batch_size=256, world_size=7)
    assert caught.value.data["nearest"] == "252 or 259"
    assert "252 = 1 x 36 x 7" in str(caught.value) and "259 = 1 x 37 x 7" in str(caught.value)


def test_a_space_without_a_legal_micro_batch_names_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match=r"legal micro-batch x accumulation: 1 x 4, 2 x 2, 4 x 1") as caught:
        _space(micro_batch_size_per_gpu=(3, 5)).check_global_batch(global_batch_size=8, world_size=2)
    assert caught.value.data["key"] == "space.micro_batch_size_per_gpu"


@pytest.mark.parametrize("global_batch_size", [None, 16])
def test_a_batch_that_can_be_split_passes(global_batch_size: int | None) -> None:
    _space().check_global_batch(global_batch_size=global_batch_size, world_size=2)


def test_candidates_share_a_process_unless_an_axis_beyond_the_allow_list_differs() -> None:
    bucket = make_candidate(deepspeed={"zero_optimization.reduce_bucket_size": 1})
    offload = make_candidate(deepspeed={"zero_optimization.offload_optimizer.device": "cpu"})
    assert group_key(make_candidate()) == group_key(make_candidate(zero_stage=3)) == group_key(bucket) == ()
    assert group_key(offload) == (("zero_optimization.offload_optimizer.device", "'cpu'"),)
