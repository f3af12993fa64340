"""Replays allocations in the way of PyTorch's CUDA caching allocator, for the bytes that it reserves."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from raysweep.allocations import AllocationLog
from raysweep.units import MIB

BLOCK_BYTES = 512
"""Every size is rounded up to a multiple of it."""
SMALL_BYTES = MIB
"""Up to here an allocation comes from the pool of small segments."""
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
"""Segment of an allocation above `SMALL_BYTES` and below `OWN_SEGMENT_BYTES`."""
OWN_SEGMENT_BYTES = 10 * MIB
"""From here on an allocation has a segment of its own, rounded up to `SEGMENT_ROUND_BYTES`."""
SEGMENT_ROUND_BYTES = 2 * MIB

CUDA_CONTEXT_BYTES = 500 * MIB
"""Context, libraries and kernels of a process on a recent device; not measured by us."""
NCCL_BYTES = 400 * MIB
"""Channel buffers of NCCL with more than one rank; not measured by us."""
CUBLAS_WORKSPACE_BYTES = 32 * MIB
"""torch's workspace of a cuBLAS handle on devices of compute capability 9.0; 8 MiB before. It is an allocation."""


@dataclass(slots=True, eq=False)
class _Block:
    """A stretch of a segment; `before` and `after` are its neighbours in the segment."""

    size_bytes: int
    is_small: bool
    is_free: bool = False
    before: _Block | None = None
    after: _Block | None = None


@dataclass(slots=True)
class CachingAllocator:
    """The allocator's default behaviour on one stream: best fit, blocks split and joined, segments never given back.

    Sizes and rules are those of c10/cuda/CUDACachingAllocator.cpp with no option set (`PYTORCH_ALLOC_CONF`); without
    expandable segments. No replay has been compared with a GPU.
    """

    reserved_bytes: int = 0
    allocated_bytes: int = 0
    """Of blocks, so rounded up."""
    _free: dict[bool, list[tuple[int, int, _Block]]] = field(default_factory=lambda: {True: [], False: []})
    _stamp: int = 0
    _stamps: dict[int, int] = field(default_factory=dict)

    def allocate(self, size_bytes: int) -> _Block:
        """A block of at least so many bytes."""
        size_bytes = max(BLOCK_BYTES, -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        is_small = size_bytes <= SMALL_BYTES
        block = self._best_fit(size_bytes, is_small) or self._new_segment(size_bytes, is_small)
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes >= BLOCK_BYTES if is_small else rest_bytes > SMALL_BYTES:
            rest = _Block(rest_bytes, is_small, before=block, after=block.after)
            if rest.after is not None:
                rest.after.before = rest
            block.size_bytes, block.after = size_bytes, rest
            self._put(rest)
        self.allocated_bytes += block.size_bytes
        return block

    def free(self, block: _Block) -> None:
        """Take a block back, and join it with free neighbours."""
        self.allocated_bytes -= block.size_bytes
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                self._take(neighbour)
                if neighbour is block.before:
                    block.before = neighbour.before
                    if block.before is not None:
                        block.before.after = block
                else:
                    block.after = neighbour.after
                    if block.after is not None:
                        block.after.before = block
                block.size_bytes += neighbour.size_bytes
        self._put(block)

    def _best_fit(self, size_bytes: int, is_small: bool) -> _Block | None:
        pool = self._free[is_small]
        place = bisect_left(pool, size_bytes, key=lambda entry: entry[0])
        if place == len(pool):
            return None
        block = pool[place][2]
        self._take(block)
        return block

    def _new_segment(self, size_bytes: int, is_small: bool) -> _Block:
        if is_small:
            segment_bytes = SMALL_SEGMENT_BYTES
        elif size_bytes < OWN_SEGMENT_BYTES:
            segment_bytes = LARGE_SEGMENT_BYTES
        else:
            segment_bytes = -(-size_bytes // SEGMENT_ROUND_BYTES) * SEGMENT_ROUND_BYTES
        self.reserved_bytes += segment_bytes
        return _Block(segment_bytes, is_small)

    def _put(self, block: _Block) -> None:
        block.is_free = True
        self._stamp += 1
        self._stamps[id(block)] = self._stamp
        insort(self._free[block.is_small], (block.size_bytes, self._stamp, block), key=lambda entry: entry[:2])

    def _take(self, block: _Block) -> None:
        block.is_free = False
        pool, entry = self._free[block.is_small], (block.size_bytes, self._stamps.pop(id(block)))
        del pool[bisect_left(pool, entry, key=lambda each: each[:2])]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaMemory:
    """What a step would take on a CUDA device, by replay of a CPU trace; no run on a GPU has confirmed it."""

    allocated_bytes: int
    """Highest sum of blocks, rounding included."""
    reserved_bytes: int
    """Of the allocator, after steps enough that it grows no more."""
    used_bytes: int
    """Reserved, and what lies beside the allocator: context, and NCCL where there are peers."""


MOST_STEPS = 3
"""Steps that are replayed at most: after the first, the second meets the fragments that it left."""


def replay_on_cuda(log: AllocationLog, *, world_size: int) -> CudaMemory:
    """Replay a step's allocations again and again, until no segment is added.

    Args:
        log: of a trace; kinds that a CUDA run does not have are to be left out before.
        world_size: with one rank there is no NCCL.
    """
    allocator = CachingAllocator()
    allocator.allocate(CUBLAS_WORKSPACE_BYTES)
    parts = list(log.parts())
    blocks = [allocator.allocate(size) for size in parts[0][1]]
    events = [event for _, part in parts[1:] for event in part]
    allocated_bytes, before = allocator.allocated_bytes, -1
    for _ in range(MOST_STEPS):
        if allocator.reserved_bytes == before:
            break
        before = allocator.reserved_bytes
        allocated_bytes = max(allocated_bytes, _take_step(allocator, list(blocks), events))
    beside_bytes = CUDA_CONTEXT_BYTES + (NCCL_BYTES if world_size > 1 else 0)
    return CudaMemory(
        allocated_bytes=allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        used_bytes=allocator.reserved_bytes + beside_bytes,
    )


def _take_step(allocator: CachingAllocator, held: list[_Block], events: list[int]) -> int:
    """The highest allocated bytes of a step; what it took and did not free is freed at its end, as if in the next one.

    What was held before and is freed in the step is taken again first, so that each step begins alike.
    """
    blocks, peak_bytes = list(held), allocator.allocated_bytes
    freed: set[int] = set()
    for event in events:
        if event > 0:
            blocks.append(allocator.allocate(event))
        else:
            allocator.free(blocks[-event - 1])
            freed.add(-event - 1)
        peak_bytes = max(peak_bytes, allocator.allocated_bytes)
    for index in range(len(held), len(blocks)):
        if index not in freed:
            allocator.free(blocks[index])
    for index in sorted(freed):
        if index < len(held):
            held[index] = allocator.allocate(held[index].size_bytes)
    return peak_bytes
