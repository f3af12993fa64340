"""Measures what a model's forward and backward hold, block by block, with nothing computed and no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from raysweep.activations import ActivationProfile, Line, Moment, Passes, Run, fullest
from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.estimate.fake_engine import FakeBatches
from raysweep.estimate.fake_mode import FakeEngineTracker
from raysweep.estimate.fake_world import alone
from raysweep.trial import LaunchRequest
from raysweep.worker.birth import DTYPES
from raysweep.worker.blocks import BlockList, checkpoint_blocks, find_block_lists
from raysweep.worker.meter import loss_of
from raysweep.worker.model import Blueprint, open_model
from raysweep.worker.tracker import LiveBytesTracker
from raysweep.workload import BYTES_PER_ELEMENT, Workload

MICRO_BATCHES = (2, 4)
"""Two, so that all is affine between and beyond. A micro-batch of 1 takes ways of its own, and is measured beside."""


@dataclass(slots=True, kw_only=True)
class _Part:
    """One block's pass in one direction, or the head's."""

    began_bytes: int
    ended_bytes: int = 0
    moments: list[tuple[int, int]] = field(default_factory=list)
    """Bytes alive, and elements of gradients finished since the part began."""
    gradient_elements: int = 0


@dataclass(slots=True, kw_only=True)
class _Pass:
    """One forward and backward pass, part by part: what comes before the blocks, each block called, the head."""

    forward: list[_Part]
    backward: dict[int, _Part] = field(default_factory=dict)
    """By place in `forward`. The first has none; nor has a block that no gradient reaches."""
    indices: list[int] = field(default_factory=list)
    """Place of each called block in its list."""
    batch_bytes: int = 0


class _PassTracker(FakeEngineTracker):  # type: ignore[no-untyped-call]
    """Live bytes, told apart by the part of the pass in which they come."""

    part: _Part | None = None

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
        Exception: whatever the model's code raises, and torch's own errors for operators that cannot run without
            numbers.
    """
    blueprint = open_model(workload.model)
    tracker = _PassTracker(rank=0, copies_reduce_scatter=False)
    with alone(), FakeTensorMode(allow_non_fake_inputs=True) as fake_mode, tracker:
        model = _built(blueprint, workload)
        lists = find_block_lists(model, names=blueprint.block_lists)
        own_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        buffer_bytes = tracker.current_bytes() - own_bytes
        model_passes = _ModelPasses(model, lists, tracker)
        taken: dict[int, list[_Pass]] = {0: [], 1: []}
        for interval in (0, 1) if lists else (0,):
            checkpoint_blocks(lists, interval)
            with model_passes.watched():
                for size in (1, *MICRO_BATCHES):
                    with unset_fake_temporarily():
                        batches = blueprint.batches(_request(workload, size), 0)
                    batches.in_memory_pass = True
                    taken[interval].append(model_passes.take(FakeBatches(batches, fake_mode, tracker)))
    element_bytes = BYTES_PER_ELEMENT[workload.precision]
    (one, *plain), (one_checkpointed, *checkpointed) = taken[0], taken[1] or taken[0]
    profile = _profile(plain, checkpointed, buffer_bytes=buffer_bytes, element_bytes=element_bytes)
    of_one = _profile([one, one], [one_checkpointed] * 2, buffer_bytes=buffer_bytes, element_bytes=element_bytes)
    return replace(profile, of_one=of_one)


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
        self._pass = _Pass(forward=[])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, the hooks are there; a finished gradient is noted and dropped."""
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        handles = [
            parameter.register_post_accumulate_grad_hook(self._finish_gradient)  # type: ignore[no-untyped-call]
            for parameter in trained
        ]
        for blocks in self._lists:
            for index, block in enumerate(blocks):
                handles.append(block.register_forward_pre_hook(partial(self._begin_block, index)))
                handles.append(block.register_forward_hook(self._end_block))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def take(self, batches: FakeBatches) -> _Pass:
        """One forward and backward pass."""
        tracker = self._tracker
        tracker.part = _Part(began_bytes=tracker.current_bytes())
        self._pass = _Pass(forward=[tracker.part])
        if batches.has_worst_case:
            # It comes from the second batch on.
            next(batches)
        batch = next(batches)
        self._pass.batch_bytes = tracker.current_bytes() - tracker.part.began_bytes
        loss = loss_of(self._model(**batch))
        self._end_part()
        self._begin_backward(len(self._pass.forward) - 1)
        loss.backward()  # type: ignore[no-untyped-call]
        tracker.part = None
        return self._pass

    def _begin_block(self, index: int, *_: Any) -> None:
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
        self._tracker.part = _Part(began_bytes=self._tracker.current_bytes())
        self._pass.forward.append(self._tracker.part)

    def _begin_backward(self, place: int) -> None:
        """Of the block or head at a place; the head's builds on what the last block left."""
        last_block = len(self._pass.forward) - 2
        part = _Part(began_bytes=self._pass.forward[min(place, last_block)].ended_bytes)
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


def _profile(
    plain: Sequence[_Pass], checkpointed: Sequence[_Pass], *, buffer_bytes: int, element_bytes: int
) -> ActivationProfile:
    """The lines through the passes at the two micro-batches, with equal blocks told once.

    Raises:
        ValueError: when the model calls its blocks otherwise at another micro-batch.
    """
    everything = (*plain, *checkpointed)
    ways = {(tuple(each.indices), tuple(sorted(each.backward))) for each in everything}
    if len(ways) > 1:
        raise ValueError("the model calls its blocks otherwise at another micro-batch, or when they are checkpointed")
    indices = [*plain[0].indices, plain[0].indices[-1] if plain[0].indices else 0]
    runs: list[Run] = []
    for place, index in enumerate(indices, start=1):
        run = Run(
            first_index=index,
            count=1,
            plain=_passes(plain, place, element_bytes),
            checkpointed=_passes(checkpointed, place, element_bytes),
            gradient_elements=max(
                each.backward[place].gradient_elements if place in each.backward else 0 for each in everything
            ),
        )
        before = runs.pop() if runs else None
        if before is None:
            runs = [run]
        elif before == replace(run, first_index=index - before.count, count=before.count):
            runs.append(replace(before, count=before.count + 1))
        else:
            runs += [before, run]
    return ActivationProfile(
        embedding=_passes(plain, 0, element_bytes),
        runs=tuple(runs),
        batch=_line([each.batch_bytes for each in plain]),
        buffer_bytes=buffer_bytes,
    )


def _passes(runs: Sequence[_Pass], place: int, element_bytes: int) -> Passes:
    forward = [run.forward[place] for run in runs]
    backward = [run.backward[place] for run in runs if place in run.backward]
    kept = _line([part.ended_bytes - part.began_bytes for part in forward])
    return Passes(
        kept=kept,
        forward=fullest(_moments(forward), element_bytes=element_bytes),
        backward=fullest(_moments(backward), element_bytes=element_bytes),
    )


def _moments(parts: Sequence[_Part]) -> list[Moment]:
    """Each moment as a line; where other operators run at another micro-batch, the two fullest moments alone."""
    above = [[(size_bytes - part.began_bytes, done) for size_bytes, done in part.moments] for part in parts]
    if len({tuple(done for _, done in moments) for moments in above}) > 1:
        above = [[max(moments), max(moments, key=lambda moment: moment[::-1])] for moments in above]
    found = []
    for pair in zip(*above, strict=True):
        line = _line([size_bytes for size_bytes, _ in pair])
        found.append(
            Moment(
                constant_bytes=line.constant_bytes,
                sample_bytes=line.sample_bytes,
                gradient_elements=min(done for _, done in pair),
            )
        )
    return found


def _line(sizes_bytes: Sequence[int]) -> Line:
    (first, second), (few, many) = sizes_bytes, MICRO_BATCHES
    slope = (second - first) / (many - few)
    return Line(constant_bytes=first - slope * few, sample_bytes=slope)
