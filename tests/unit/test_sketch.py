"""The plan of a model described in a few numbers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from raysweep.sketch import SketchInput, render_sketch, sketch_plan
from raysweep.units import GIB

SHAPE = {"layers": 32, "hidden": 4096, "sequence_length": 4096}


def seven_billion(**changed: int) -> SketchInput:
    return SketchInput(parameters=7_000_000_000, devices=8, **{**SHAPE, **changed})


def test_totals_of_seven_billion_parameters() -> None:
    sketch = sketch_plan(seven_billion())
    assert [round(state["gib"], 1) for state in sketch["model_states"]] == [104.3, 35.9, 24.4, 13.0]
    assert sketch["activations"] == {"none_checkpointed_gib": 16.0, "checkpointed_gib": 1.0, "extra_flops": 1 / 3}
    rounded = [[round(total[key], 1) for key in total if key != "zero_stage"] for total in sketch["totals"]]
    assert rounded[2:] == [[40.4, 25.4], [29.0, 14.0]]


def test_interval_is_the_dial() -> None:
    activations = sketch_plan(seven_billion(activation_checkpoint_interval=2))["activations"]
    assert activations["checkpointed_gib"] == 8.5
    assert activations["extra_flops"] == pytest.approx(1 / 6)


def test_without_a_shape_only_model_states_are_known() -> None:
    sketch = sketch_plan(SketchInput(parameters=7_000_000_000, devices=8))
    assert set(sketch["activations"].values()) == {None}
    assert all(total["checkpointed_gib"] is None for total in sketch["totals"])
    assert sketch["candidates"][0]["estimate"]["peak_phase"] == "model_states"
    assert sketch["candidates"][0]["estimate"]["peak_bytes"] == 112 * 10**9


def test_candidates_that_cannot_fit_say_why() -> None:
    rows = {row["candidate_id"]: row for row in sketch_plan(seven_billion())["candidates"]}
    assert len(rows) == 8
    assert rows["s0-k1-b1-g1"]["status"] == "PRUNED" and "80.0 GiB" in rows["s0-k1-b1-g1"]["reason"]
    assert rows["s2-k1-b1-g1"]["status"] == "ADMITTED" and rows["s2-k1-b1-g1"]["reason"] == ""


@pytest.mark.parametrize(
    ("parameters", "layers", "hidden", "length", "device_gib", "rule"),
    [
        (10**8, 12, 768, 1024, 80, 1),
        (10**9, 20, 2048, 2048, 24, 2),
        (7 * 10**9, 32, 4096, 4096, 80, 3),
        (7 * 10**9, 32, 4096, 4096, 20, 4),
        (70 * 10**9, 80, 8192, 8192, 3, 5),
    ],
)
def test_each_rule_is_reached(
    parameters: int, layers: int, hidden: int, length: int, device_gib: int, rule: int
) -> None:
    given = SketchInput(
        parameters=parameters,
        devices=8,
        layers=layers,
        hidden=hidden,
        sequence_length=length,
        device_memory_bytes=device_gib * GIB,
    )
    assert sketch_plan(given)["recommendation"]["rule"] == rule


def test_sketch_is_plain_json_and_reads_as_text() -> None:
    sketch = sketch_plan(seven_billion())
    assert json.loads(json.dumps(sketch)) == sketch
    text = render_sketch(sketch)
    assert "16.0 GiB with nothing checkpointed, 1.0 GiB at interval 1, for 33% more FLOPs" in text
    assert "Rule 3:" in text and "80.0 GiB (assumed)" in text


def test_imports_neither_torch_nor_ray_nor_deepspeed() -> None:
    probe = "import sys, raysweep.sketch; print({'torch', 'ray', 'deepspeed'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip() == "set()"
