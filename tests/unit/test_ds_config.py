"""The DeepSpeed config of a candidate: what of the user's is kept, replaced or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import make_candidate, make_workload

from raysweep.ds_config import prepare_base, render
from raysweep.errors import ConfigError


def _prepared(base: dict[str, Any], precision: str = "bf16", **optimizer: Any) -> tuple[dict[str, Any], str]:
    config, notes = prepare_base(base, precision=precision, optimizer=optimizer or None)
    return config, "\n".join(notes)


def _rendered(base: dict[str, Any], *, device: str = "cpu", **candidate: Any) -> dict[str, Any]:
    config, _ = _prepared(base)
    return render(make_candidate(**candidate), workload=make_workload(device=device), base=config)


def test_a_candidate_rendered_on_an_empty_base() -> None:
    assert _rendered({}, gradient_accumulation_steps=4) == {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }


def test_what_the_user_wrote_stays() -> None:
    base = {"gradient_clipping": 1.0, "zero_optimization": {"reduce_bucket_size": 7}}
    config = _rendered(base, zero_stage=3)
    assert config["gradient_clipping"] == 1.0
    assert config["zero_optimization"] == {"reduce_bucket_size": 7, "stage": 3}


def test_rendering_leaves_the_base_as_it_was() -> None:
    base, _ = _prepared({"zero_optimization": {"reduce_bucket_size": 7}})
    before = json.dumps(base)
    render(make_candidate(deepspeed={"optimizer.params.lr": 1}), workload=make_workload(), base=base)
    assert json.dumps(base) == before


def test_further_axes_go_where_their_path_says() -> None:
    config = _rendered({}, deepspeed={"zero_optimization.overlap_comm": True, "comms_logger.enabled": False})
    assert config["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert config["comms_logger"] == {"enabled": False}


def test_torch_s_adam_is_asked_for_on_cpu_only() -> None:
    assert "torch_adam" not in _rendered({}, device="cuda")["optimizer"]["params"]
    given = {"optimizer": {"type": "AdamW", "params": {"torch_adam": False}}}
    assert _rendered(given)["optimizer"]["params"]["torch_adam"] is False


def test_an_optimizer_that_deepspeed_has_not_tested_is_allowed() -> None:
    assert _rendered({"optimizer": {"type": "SGD", "params": {}}})["zero_allow_untested_optimizer"] is True


def test_the_sweep_s_optimizer_replaces_the_base_s() -> None:
    config, notes = _prepared({"optimizer": {"type": "SGD"}}, type="AdamW", params={"lr": 1e-4})
    assert config["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-4}}
    assert "deepspeed.optimizer is overridden" in notes


@pytest.mark.parametrize(("precision", "left"), [("bf16", {"bf16"}), ("fp16", {"fp16"}), ("fp32", set())])
def test_only_the_section_of_the_precision_is_left(precision: str, left: set[str]) -> None:
    config, _ = _prepared({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, precision)
    assert set(config) & {"bf16", "fp16", "amp"} == left
    assert all(config[section]["enabled"] is True for section in left)


def test_a_list_where_one_value_is_due_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes one value; put choices under space") as caught:
        _prepared({"zero_optimization": {"reduce_bucket_size": [1, 2]}})
    assert caught.value.data["nearest"] == "space.deepspeed: {zero_optimization.reduce_bucket_size: [1, 2]}"


def test_betas_may_be_a_list() -> None:
    config, _ = _prepared({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}}})
    assert config["optimizer"]["params"]["betas"] == [0.9, 0.95]


def test_auto_is_taken_only_where_it_is_filled() -> None:
    base = {"train_batch_size": "auto", "zero_optimization": {"stage": "auto"}, "bf16": {"enabled": "auto"}}
    config, _ = _prepared(base)
    assert "auto" not in json.dumps(config)
    with pytest.raises(ConfigError, match=r"deepspeed\.optimizer\.params\.lr: 'auto'"):
        _prepared({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})
