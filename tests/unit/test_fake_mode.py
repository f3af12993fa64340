"""Operators without their numbers: what stays real, what is made up, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from raysweep.estimate.fake_mode import FakeEngineTracker
from raysweep.worker.tracker import LiveBytesTracker


@pytest.fixture
def tracker() -> Iterator[FakeEngineTracker]:
    with FakeTensorMode(allow_non_fake_inputs=True), FakeEngineTracker(rank=0, copies_reduce_scatter=True) as tracker:
        yield tracker


def test_integers_that_follow_from_integers_have_their_values(tracker: FakeEngineTracker) -> None:
    positions = torch.arange(6).view(2, 3)
    mask = (positions % 2 == 0) & torch.ones(2, 3, dtype=torch.bool)
    assert positions.sum().item() == 15
    assert mask.tolist() == [[True, False, True], [False, True, False]]
    assert torch.randperm(4, generator=torch.Generator().manual_seed(0)).sort().values.tolist() == [0, 1, 2, 3]
    assert tracker.stand_ins() == ()


def test_floats_are_fake_also_where_integers_make_them(tracker: FakeEngineTracker) -> None:
    made = [torch.randn(3, generator=torch.Generator()), torch.arange(3).float(), torch.zeros(3)]
    assert all(isinstance(tensor, FakeTensor) for tensor in made)
    assert [tensor.shape for tensor in made] == [(3,)] * 3


def test_a_mask_with_values_gives_the_shape_of_a_real_run(tracker: FakeEngineTracker) -> None:
    hidden = torch.randn(2, 3, 5)
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]]).bool()
    assert hidden[mask].shape == (3, 5)
    hidden[mask] = 0.0
    assert torch.ones_like(hidden, dtype=torch.long).sum().item() == 30


def test_numbers_of_fake_tensors_are_made_up_and_noted_with_their_place(tracker: FakeEngineTracker) -> None:
    assert torch.randn(3).sum().item() == 1.0
    assert not (torch.randn(3) > 0).any().item()
    places = [(each.value, each.place, each.expected) for each in tracker.stand_ins()]
    assert [value for value, _, _ in places] == ["1.0", "False"]
    assert all("test_fake_mode.py" in place and not expected for _, place, expected in places)


def test_bytes_are_those_that_a_real_step_counts() -> None:
    def train() -> None:
        layer = torch.nn.Linear(8, 16)
        loss = layer(torch.ones(4, 8)).relu().pow(2).mean()
        loss.backward()

    with LiveBytesTracker() as real:
        train()
    with FakeTensorMode(allow_non_fake_inputs=True), FakeEngineTracker(rank=0, copies_reduce_scatter=True) as fake:
        train()
    assert fake.peak_bytes() == real.peak_bytes() > 0
    assert fake.current_bytes() == real.current_bytes()


def test_kinds_add_up_to_the_peak_of_each_phase(tracker: FakeEngineTracker) -> None:
    weight = torch.zeros(10)
    tracker.phase = "forward"
    tracker.reset_peak()
    activation = weight * 2
    del activation
    tracker.phase = "backward"
    tracker.reset_peak()
    (build, build_bytes, _), (forward, forward_bytes, kinds) = tracker.closed_phases
    assert (build, build_bytes, forward, forward_bytes) == ("build", 40, "forward", 80)
    assert kinds == {"parameters_and_states": 40, "activations": 40}
