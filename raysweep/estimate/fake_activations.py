"""Measures what a model's forward and backward hold, block by block, with nothing computed and no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from raysweep.activations import ActivationProfile
from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.estimate.fake_engine import FakeBatches
from raysweep.estimate.fake_mode import FakeEngineTracker
from raysweep.estimate.fake_world import alone
from raysweep.pass_record import BLOCKS_KEPT, MICRO_BATCHES, PartRecord, PassRecord, profile_of
from raysweep.trial import LaunchRequest
from raysweep.worker.birth import DTYPES
from raysweep.worker.blocks import BlockList, checkpoint_blocks, find_block_lists
from raysweep.worker.meter import loss_of
from raysweep.worker.model import Blueprint, open_model
from raysweep.worker.tracker import LiveBytesTracker
from raysweep.workload import BYTES_PER_ELEMENT, Workload


class _PassTracker(FakeEngineTracker):  # type: ignore[no-untyped-call]
    """Live bytes, told apart by the part of the pass in which they come."""

    part: PartRecord | None = None

    def add(self, tensor: Tensor) -> None:
        """Count the tensor's storage, and note the moment."""
        before_bytes = self.current_bytes()
        LiveBytesTracker.add(self, tensor)
        if self.part is not None and self.current_bytes() > before_bytes:
            self.part.moments.append((self.current_bytes(), self.part.gradient_elements))

    def _drop(self, key: int) -> None:
        LiveBytesTracker._drop(self, key)


def measure_activations(workload: Workload) -> ActivationProfile:
    """The profile of a workload's model, in its precision and sequence length.

    Raises:
        ValueError: when what a pass holds does not follow from the micro-batch alone.
        Exception: whatever the model's code raises, and torch's own errors for operators that cannot run without
            numbers.
    """
    try:
        return _measured(workload, shortens=True)
    except Exception:
        # A model may need all of its blocks, and blocks may differ although they have equal parameters.
        return _measured(workload, shortens=False)


def _measured(workload: Workload, *, shortens: bool) -> ActivationProfile:
    blueprint = open_model(workload.model)
    tracker = _PassTracker(rank=0, copies_reduce_scatter=False)
    with alone(), FakeTensorMode(allow_non_fake_inputs=True) as fake_mode, tracker:
        model = _built(blueprint, workload)
        lists = find_block_lists(model, names=blueprint.block_lists)
        own_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        buffer_bytes = tracker.current_bytes() - own_bytes
        left_out = [_shorten(blocks) if shortens else 0 for blocks in lists]
        model_passes = _ModelPasses(model, lists, tracker)
        taken: dict[int, list[PassRecord]] = {0: [], 1: []}
        for interval in (0, 1) if lists else (0,):
            checkpoint_blocks(lists, interval)
            with model_passes.watched():
                for size in (1, *MICRO_BATCHES):
                    with unset_fake_temporarily():
                        batches = blueprint.batches(_request(workload, size), 0)
                    batches.in_memory_pass = True
                    taken[interval].append(model_passes.take(FakeBatches(batches, fake_mode, tracker)))
    _check(taken[0], tracker)
    finish = partial(
        profile_of,
        buffer_bytes=buffer_bytes,
        element_bytes=BYTES_PER_ELEMENT[workload.precision],
        left_out=left_out,
    )
    (one, *plain), (one_checkpointed, *checkpointed) = taken[0], taken[1] or taken[0]
    return replace(finish(plain, checkpointed), of_one=finish([one, one], [one_checkpointed] * 2))


def _shorten(blocks: BlockList) -> int:
    """Take equal blocks out of a long list, so that a deep model takes no longer than a shallow one; how many."""
    left_out = len(blocks) - BLOCKS_KEPT
    sizes = {sum(parameter.numel() for parameter in block.parameters()) for block in list(blocks)[1:]}
    if left_out <= 0 or len(sizes) > 1:
        return 0
    del blocks[BLOCKS_KEPT - 1 : -1]
    return left_out


def _check(passes: Sequence[PassRecord], tracker: _PassTracker) -> None:
    """Refuse samples of unequal sizes, of which two say nothing of a third; and numbers that are not there.

    Raises:
        ValueError: when there are such.
    """
    one, few, many = (each.input_bytes for each in passes)
    if (few - one) * (MICRO_BATCHES[1] - 1) != (many - one) * (MICRO_BATCHES[0] - 1):
        raise ValueError("the samples of its batches differ in size, and there is no worst_case_batch")
    guessed = next((each.place for each in tracker.stand_ins() if not each.expected), None)
    if guessed is not None:
        raise ValueError(f"the model's code asks for a number at {guessed}")


def _request(workload: Workload, micro_batch_size: int) -> LaunchRequest:
    candidate = Candidate(zero_stage=0, activation_checkpoint_interval=0, micro_batch_size_per_gpu=micro_batch_size)
    alone_workload = replace(workload, data={"kind": "synthetic"}, world_size=1, global_batch_size=None)
    return LaunchRequest(candidate=candidate, workload=alone_workload, ds_config={}, window=MeasurementWindow())


def _built(blueprint: Blueprint, workload: Workload) -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[workload.precision])
    try:
        return blueprint.build()
    finally:
        torch.set_default_dtype(before)


class _ModelPasses:
    """Takes passes of a model, and tells the parts of each by hooks on its blocks and its parameters."""

    def __init__(self, model: nn.Module, lists: Sequence[BlockList], tracker: _PassTracker) -> None:
        self._model = model
        self._lists = lists
        self._tracker = tracker
        self._pass = PassRecord(forward=[])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, the hooks are there; a finished gradient is noted and dropped."""
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        handles = [
            parameter.register_post_accumulate_grad_hook(self._finish_gradient)  # type: ignore[no-untyped-call]
            for parameter in trained
        ]
        for number, blocks in enumerate(self._lists):
            for index, block in enumerate(blocks):
                handles.append(block.register_forward_pre_hook(partial(self._begin_block, (number, index))))
                handles.append(block.register_forward_hook(self._end_block))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def take(self, batches: FakeBatches) -> PassRecord:
        """One forward and backward pass."""
        tracker = self._tracker
        tracker.part = PartRecord(began_bytes=tracker.current_bytes())
        self._pass = PassRecord(forward=[tracker.part])
        if batches.has_worst_case:
            # It comes from the second batch on.
            next(batches)
        batch = next(batches)
        self._pass.batch_bytes = tracker.current_bytes() - tracker.part.began_bytes
        self._pass.input_bytes = sum(tensor.numel() * tensor.element_size() for tensor in batch.values())
        loss = loss_of(self._model(**batch))
        self._end_part()
        self._begin_backward(len(self._pass.forward) - 1)
        loss.backward()  # type: ignore[no-untyped-call]
        tracker.part = None
        return self._pass

    def _begin_block(self, index: tuple[int, int], *_: Any) -> None:
        """What came since the block before, such as the release of its input, belongs to that block."""
        passed = self._pass
        self._end_part()
        if passed.indices:
            between = passed.forward.pop()
            passed.forward[-1].moments += between.moments
            passed.forward[-1].ended_bytes = between.ended_bytes
        passed.indices.append(index)
        self._begin_part()

    def _end_block(self, block: nn.Module, inputs: Any, output: Any) -> None:
        self._end_part()
        place = len(self._pass.forward) - 1
        self._begin_part()
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda gradient: self._begin_backward(place))  # type: ignore[no-untyped-call]
                return

    def _end_part(self) -> None:
        self._pass.forward[-1].ended_bytes = self._tracker.current_bytes()

    def _begin_part(self) -> None:
        self._tracker.part = PartRecord(began_bytes=self._tracker.current_bytes())
        self._pass.forward.append(self._tracker.part)

    def _begin_backward(self, place: int) -> None:
        """Of the block or head at a place; the head's builds on what the last block left."""
        last_block = len(self._pass.forward) - 2
        part = PartRecord(began_bytes=self._pass.forward[min(place, last_block)].ended_bytes)
        part.moments.append((self._tracker.current_bytes(), 0))
        self._pass.backward[place] = self._tracker.part = part

    def _finish_gradient(self, parameter: Tensor) -> None:
        part, gradient = self._tracker.part, parameter.grad
        assert part is not None and gradient is not None
        part.gradient_elements += gradient.numel()
        # Autograd lets go of it only after this hook.
        left_bytes = self._tracker.current_bytes() - gradient.numel() * gradient.element_size()
        part.moments.append((left_bytes, part.gradient_elements))
        parameter.grad = None
