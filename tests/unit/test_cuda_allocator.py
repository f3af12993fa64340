"""The rules of the CUDA caching allocator, as its source states them; no GPU has been asked."""

from __future__ import annotations

import random

import pytest

from raysweep.allocations import AllocationLog
from raysweep.cuda_allocator import (
    CUBLAS_WORKSPACE_BYTES,
    CUDA_CONTEXT_BYTES,
    NCCL_BYTES,
    CachingAllocator,
    replay_on_cuda,
)
from raysweep.units import MIB


@pytest.mark.parametrize(
    ("size_bytes", "segment_bytes"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (101 * MIB, 102 * MIB),
    ],
)
def test_a_segment_is_as_large_as_the_source_says(size_bytes: int, segment_bytes: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size_bytes)
    assert allocator.reserved_bytes == segment_bytes
    assert allocator.allocated_bytes % 512 == 0 and allocator.allocated_bytes >= size_bytes


def test_small_allocations_share_a_segment_and_large_ones_split_one() -> None:
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.allocate(1)
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (2 * MIB, 2 * MIB)
    for _ in range(4):
        allocator.allocate(5 * MIB)
    assert allocator.reserved_bytes == 22 * MIB


def test_a_rest_of_a_mebibyte_is_not_split_off() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(12 * MIB)
    allocator.free(block)
    allocator.allocate(11 * MIB)
    assert allocator.allocated_bytes == 12 * MIB
    assert allocator.reserved_bytes == 12 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (30, 14, 50)]
    for block in blocks:
        allocator.free(block)
    allocator.allocate(14 * MIB)
    allocator.allocate(30 * MIB)
    allocator.allocate(50 * MIB)
    assert allocator.reserved_bytes == 94 * MIB


def test_free_neighbours_are_joined() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for place in (1, 3, 2, 0):
        allocator.free(blocks[place])
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_nothing_is_lost_in_many_turns() -> None:
    draw, allocator, alive = random.Random(0), CachingAllocator(), []
    for _ in range(3000):
        if alive and draw.random() < 0.5:
            allocator.free(alive.pop(draw.randrange(len(alive))))
        else:
            alive.append(allocator.allocate(draw.choice([100, 3000, MIB, 3 * MIB, 25 * MIB])))
        assert allocator.allocated_bytes == sum(block.size_bytes for block in alive) <= allocator.reserved_bytes
    for block in alive:
        allocator.free(block)
    assert allocator.allocated_bytes == 0


def test_a_step_is_replayed_until_the_allocator_grows_no_more() -> None:
    log = AllocationLog(
        events=(40 * MIB, 30 * MIB, 10 * MIB, -2, 30 * MIB, -4, -3),
        kinds=(0, 0, 0, 0),
        kind_names=("x",),
        phase_begins=(("forward", 1),),
    )
    found = replay_on_cuda(log, world_size=2)
    assert found.allocated_bytes == CUBLAS_WORKSPACE_BYTES + 80 * MIB
    assert found.reserved_bytes == CUBLAS_WORKSPACE_BYTES + 80 * MIB
    assert found.used_bytes == found.reserved_bytes + CUDA_CONTEXT_BYTES + NCCL_BYTES
    assert replay_on_cuda(log, world_size=1).used_bytes == found.used_bytes - NCCL_BYTES


def test_what_is_held_and_replaced_in_a_step_does_not_grow_from_step_to_step() -> None:
    log = AllocationLog(events=(16 * MIB, 16 * MIB, -1), kinds=(0, 0), kind_names=("x",), phase_begins=(("step", 1),))
    assert replay_on_cuda(log, world_size=1).reserved_bytes == CUBLAS_WORKSPACE_BYTES + 32 * MIB
