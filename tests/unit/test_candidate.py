"""A candidate's id, its recomputed blocks and its words."""

from __future__ import annotations

import pickle

import pytest
from builders import make_candidate

from raysweep.candidate import Candidate
from raysweep.serde import from_dict, to_dict


def test_the_id_reads_as_the_axes() -> None:
    assert make_candidate(gradient_accumulation_steps=4).candidate_id == "s2-k0-b2-g4"


def test_further_axes_are_hashed_into_the_id() -> None:
    ids = {make_candidate(deepspeed={"zero_optimization.reduce_bucket_size": n}).candidate_id for n in (1, 2)}
    assert len(ids) == 2
    assert all(name.startswith("s2-k0-b2-g1-") and len(name) == 18 for name in ids)


def test_the_id_is_the_same_in_another_process() -> None:
    candidate = make_candidate(deepspeed={"a": 1, "b": 2})
    turned = make_candidate(deepspeed={"b": 2, "a": 1})
    assert candidate.candidate_id == turned.candidate_id == pickle.loads(pickle.dumps(candidate)).candidate_id


@pytest.mark.parametrize(("interval", "blocks"), [(0, 0), (1, 4), (2, 2), (3, 2), (4, 1), (9, 1)])
def test_recomputed_blocks_of_four(interval: int, blocks: int) -> None:
    assert make_candidate(activation_checkpoint_interval=interval).recomputed_blocks(4) == blocks


@pytest.mark.parametrize(
    "wrong",
    [
        {"zero_stage": 4},
        {"activation_checkpoint_interval": -1},
        {"micro_batch_size_per_gpu": 0},
        {"gradient_accumulation_steps": 0},
    ],
)
def test_an_impossible_candidate_is_not_made(wrong: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        make_candidate(**wrong)


def test_it_crosses_a_process_as_plain_values() -> None:
    candidate = make_candidate(deepspeed={"zero_optimization.overlap_comm": True})
    again = from_dict(Candidate, to_dict(candidate))
    assert again == candidate and again.candidate_id == candidate.candidate_id
