"""The batch arithmetic and the shape of the built-in model."""

from __future__ import annotations

import pytest
from builders import make_workload

from raysweep.workload import accumulation_for, gpt_shape, legal_splits, nearest_global_batches


def test_gpt2_has_its_published_size() -> None:
    shape = gpt_shape(blocks=12, hidden=768, vocab_size=50257, positions=1024, tied=True)
    assert shape.parameters == 124_439_808
    assert shape.block_parameters == 7_087_872
    assert shape.largest_parameter == 50257 * 768


def test_an_untied_head_adds_one_embedding() -> None:
    tied, untied = (
        gpt_shape(blocks=4, hidden=32, vocab_size=256, positions=16, tied=each).parameters for each in (True, False)
    )
    assert untied - tied == 256 * 32


def test_global_batch_is_micro_batch_x_accumulation_x_workers() -> None:
    assert make_workload(world_size=7).global_batch_of(18, 2) == 252


@pytest.mark.parametrize(("micro_batch", "steps"), [(1, 8), (2, 4), (8, 1), (3, None), (16, None)])
def test_accumulation_gives_the_global_batch_exactly(micro_batch: int, steps: int | None) -> None:
    assert accumulation_for(16, micro_batch, 2) == steps


def test_nearest_totals_that_seven_workers_can_share() -> None:
    assert nearest_global_batches(256, 7) == (252, 259)
    assert nearest_global_batches(3, 7) == (7,)


def test_legal_splits() -> None:
    assert legal_splits(16, 2) == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert legal_splits(256, 7) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"precision": "fp32"},
        {"environment": {"OMP_NUM_THREADS": "2"}},
        {"world_size": 4},
        {"seed": 1},
        {"device": "cuda"},
        {"global_batch_size": 8},
        {"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}},
    ],
)
def test_the_hash_follows_whatever_could_change_a_measurement(changed: dict[str, object]) -> None:
    assert make_workload().workload_sha256() == make_workload().workload_sha256()
    assert make_workload(**changed).workload_sha256() != make_workload().workload_sha256()
