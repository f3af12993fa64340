"""What a pass holds, measured on small models and put into phases."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_candidate, make_profile, make_workload

from raysweep.activations import ActivationProfile, Line, Moment, fullest
from raysweep.estimate.fake_activations import measure_activations
from raysweep.memory import MemoryEstimate, ZeroSettings, estimate_memory
from raysweep.model_schema import FactoryModel
from raysweep.pass_record import PartRecord, PassRecord, profile_of
from raysweep.serde import from_dict, to_dict
from raysweep.workload import ModelShape, Workload

ROWS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Model(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(8, 1)

    def forward(self, rows):
        x = self.stem(rows)
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean()

def make(blocks=3, length=10, grows=False):
    def batches(*, micro_batch_size, rank, world_size, seed):
        while True:
            yield {"rows": torch.zeros(micro_batch_size, length * (micro_batch_size if grows else 1), 4)}
    return Model(blocks), batches

class Asking(Model):
    def forward(self, rows):
        return super().forward(rows) * (2 if rows.sum().item() > 3 else 1)

def asking():
    return Asking(3), make()[1]
"""

SHAPE = ModelShape(parameters=200, block_parameters=40, largest_parameter=20, blocks=4, hidden=0, vocab_size=0)
"""Of the model that `make_profile` tells the activations of."""

TENSOR_BYTES = 10 * 8 * 4
"""Of a sample: ten rows of eight features in fp32."""


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setattr("sys.path", ["", *sys.path])
    (tmp_path / "rows_of_mine.py").write_text(ROWS)
    yield FactoryModel(kind="factory", factory="rows_of_mine:make", python_path=str(tmp_path)).model_dump()
    sys.modules.pop("rows_of_mine", None)


def workload_of(section: dict[str, Any], **changes: Any) -> Workload:
    return make_workload(model=section, shape=None, precision="fp32", **changes)


def estimate(profile: ActivationProfile, *, settings: ZeroSettings | None = None, **changes: Any) -> MemoryEstimate:
    shape = replace(SHAPE, activations=profile)
    device = changes.pop("device", "cpu")
    workload = make_workload(model={"kind": "hf"}, shape=shape, device=device)
    candidate = make_candidate(**{"zero_stage": 0, "micro_batch_size_per_gpu": 1000} | changes)
    return estimate_memory(candidate, workload, settings or ZeroSettings(reduce_bucket_size=100))


@pytest.mark.parametrize(("interval", "kept"), [(0, 410_000), (1, 50_000), (2, 230_000)])
def test_blocks_add_up_by_what_is_checkpointed(interval: int, kept: int) -> None:
    phases = estimate(make_profile(), activation_checkpoint_interval=interval).phases
    assert phases["backward_start"]["activations"] == kept + 70_000
    assert phases["forward"]["activations"] == kept + 50_000
    assert phases["backward_first"]["activations"] == kept + (130_000 if interval == 1 else 30_000)
    assert phases["step"]["activations"] == phases["gradient_reduction"]["activations"] == 2_000


def test_finished_gradients_stay_at_stage_0_and_go_at_stage_2() -> None:
    profile = make_profile()
    assert estimate(profile).phases["backward_start"]["gradients"] == 2 * 20
    # The late moment holds more of them, and rules where little else is alive.
    few = estimate(profile, micro_batch_size_per_gpu=1).phases["backward_late"]
    assert (few["gradients"], few["activations"]) == (2 * (20 + 40 + 40), 310 + 64 - 40)
    sharded = estimate(profile, zero_stage=2).phases
    assert "gradients" not in sharded["backward_start"]
    assert sharded["backward_start"]["reduce_bucket"] == sharded["backward_late"]["reduce_bucket"] == 200
    assert estimate(profile, zero_stage=2, settings=ZeroSettings(reduce_bucket_size=20)).phases["backward_start"][
        "gradients"
    ] == 2 * (100 + 20 // 2)


def test_buffers_rest_and_a_micro_batch_of_one_has_its_own_profile() -> None:
    profile = replace(make_profile(), buffer_bytes=5000)
    assert estimate(profile).phases["step"]["buffers"] == 5000
    one = replace(profile, embedding=replace(profile.embedding, kept=Line(constant_bytes=7777)))
    both = replace(profile, of_one=one)
    assert estimate(both, micro_batch_size_per_gpu=1).phases["forward"]["activations"] == 7777 + 4 * 100 + 50
    assert estimate(both).phases == estimate(profile).phases


def test_measured_on_cpu_all_terms_have_the_band_of_the_device_and_on_cuda_activations_do_not() -> None:
    assert estimate(make_profile()).band == 0.12
    assert estimate(make_profile(), device="cuda").band == pytest.approx(0.5, abs=0.01)


def test_nothing_is_certain_of_what_compiled_blocks_hold_measured_or_not() -> None:
    plain, compiled = (estimate(make_profile(), torch_compile=each) for each in (False, True))
    states = max(terms.total() - terms["activations"] for terms in map(Counter, plain.phases.values()))
    assert compiled.phases == plain.phases
    assert compiled.lower_bound_bytes == pytest.approx((1 - plain.band) * states, abs=1)


def test_with_another_attention_activations_are_those_that_were_measured_with_it_or_not_known() -> None:
    shape = replace(SHAPE, activations=make_profile())
    workload = make_workload(model={"kind": "hf", "attn_implementation": None}, shape=shape)
    assert workload.of(make_candidate(torch_compile=True, world_size=1)).shape == shape
    assert workload.of(make_candidate(attn_implementation="eager")).shape == SHAPE
    other = replace(make_profile(), buffer_bytes=8)
    known = replace(workload, shape=replace(shape, activations_by_attention={"eager": other}))
    assert known.of(make_candidate(attn_implementation="eager")).shape == replace(SHAPE, activations=other)
    assert known.of(make_candidate(attn_implementation="sdpa")).shape == SHAPE
    named = make_workload(model={"kind": "hf", "attn_implementation": "eager"}, shape=shape)
    assert named.of(make_candidate(attn_implementation="eager")).shape == shape


def test_a_moment_is_left_out_where_another_is_as_full_whatever_the_micro_batch() -> None:
    low, high, steep = Moment(constant_bytes=10), Moment(constant_bytes=20), Moment(sample_bytes=2)
    late = Moment(constant_bytes=5, gradient_elements=3)
    assert fullest([low, high, steep, late], element_bytes=2) == (high, steep, late)
    assert fullest([low, high, late], element_bytes=8) == (high, late)
    assert fullest([], element_bytes=2) == ()


def test_a_measured_block_holds_what_its_layers_save(section: dict[str, Any]) -> None:
    profile = measure_activations(workload_of(section))
    blocks = [run for run in profile.runs for _ in range(run.count)][:3]
    # relu's output of four tensors, saved once for both, and the output; the linear layers' inputs are there already.
    assert [block.plain.kept for block in blocks] == [Line(sample_bytes=5 * TENSOR_BYTES)] * 3
    assert [block.checkpointed.kept.sample_bytes for block in blocks] == [TENSOR_BYTES] * 3
    assert [block.gradient_elements for block in blocks][1:] == [8 * 32 + 32 + 32 * 8 + 8] * 2
    assert blocks[0].gradient_elements == blocks[1].gradient_elements + 4 * 8 + 8
    assert profile.batch == Line(sample_bytes=10 * 4 * 4)
    assert from_dict(ActivationProfile, json.loads(json.dumps(to_dict(profile)))) == profile


def test_a_deep_model_is_measured_by_five_of_its_blocks(section: dict[str, Any]) -> None:
    shallow, deep = (measure_activations(workload_of(section | {"kwargs": {"blocks": n}})) for n in (5, 40))
    assert sum(run.count for run in deep.runs) == 41
    for interval in (0, 1, 3):
        few, many = list(shallow.parts(interval)), list(deep.parts(interval))
        assert (many[:5], many[39] in few, many[40] in few) == (few[:3] + many[3:5], True, True)
        assert Counter(many)[few[1]] > 10


def test_samples_of_unequal_size_are_not_drawn_as_a_line(section: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the samples of its batches differ in size"):
        measure_activations(workload_of(section | {"kwargs": {"grows": True}}))


def test_a_model_that_asks_for_numbers_is_not_measured(section: dict[str, Any]) -> None:
    asking = section | {"factory": "rows_of_mine:asking"}
    with pytest.raises(ValueError, match=r"the model's code asks for a number at .*rows_of_mine\.py"):
        measure_activations(workload_of(asking))


def record(*, indices: list[tuple[int, int]], kept: list[int], micro_batch: int) -> PassRecord:
    forward, began = [], 0
    for each in [0, *kept, 0]:
        ended = began + each * micro_batch
        forward.append(PartRecord(began_bytes=began, ended_bytes=ended, moments=[(ended, 0)]))
        began = ended
    backward = {place: PartRecord(began_bytes=0, moments=[(0, 0)]) for place in range(1, len(kept) + 2)}
    return PassRecord(forward=forward, backward=backward, indices=indices, batch_bytes=micro_batch)


def made(kept: list[int], **changes: Any) -> ActivationProfile:
    indices = [(0, index) for index in range(len(kept))]
    passes = [record(indices=indices, kept=kept, micro_batch=size) for size in (2, 4)]
    return profile_of(passes, passes, buffer_bytes=0, element_bytes=2, **changes)


def test_blocks_that_were_left_out_come_back_before_the_last() -> None:
    profile = made([9, 7, 7, 7, 8], left_out=[10])
    kept = [passes.kept.sample_bytes for passes, _ in profile.parts(0)]
    assert kept == [9] + [7] * 13 + [8] + [0]
    assert [run.first_index for run in profile.runs] == [0, 1, 14, 14]


def test_blocks_that_differ_stand_for_no_others() -> None:
    with pytest.raises(ValueError, match="blocks that stand for others hold different bytes"):
        made([9, 7, 6, 7, 8], left_out=[10])
    assert len(made([9, 7, 6, 7, 8]).runs) == 6


def test_blocks_called_otherwise_at_another_micro_batch_are_refused() -> None:
    two = record(indices=[(0, 0)], kept=[5], micro_batch=2)
    four = record(indices=[(0, 1)], kept=[5], micro_batch=4)
    with pytest.raises(ValueError, match="calls its blocks otherwise"):
        profile_of([two, four], [two, four], buffer_bytes=0, element_bytes=2)
