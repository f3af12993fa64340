"""The installed DeepSpeed, asked in a subprocess whether it takes a config."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import pytest
from builders import make_request

from raysweep.errors import ConfigError, PreflightError
from raysweep.estimate import ds_check
from raysweep.estimate.ds_check import check_ds_configs

DEEPSPEED = f"DeepSpeed {version('deepspeed')}"


def _config(**changes: Any) -> dict[str, Any]:
    return dict(make_request().ds_config) | changes


def test_what_is_rendered_is_taken() -> None:
    check_ds_configs([_config(gradient_clipping=1.0)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gradient_cliping": 1.0},
            f"deepspeed.gradient_cliping: unknown to {DEEPSPEED} (nearest valid: gradient_clipping)",
        ),
        ({"bf16": {"enabled": True, "loss_scale": 0}}, f"deepspeed.bf16.loss_scale: unknown to {DEEPSPEED}"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memroy": True}}},
            f"deepspeed.zero_optimization.offload_optimizer.pin_memroy: unknown to {DEEPSPEED} "
            "(nearest valid: pin_memory)",
        ),
    ],
)
def test_what_deepspeed_refuses_or_ignores_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_ds_configs([_config(**changes)])
    assert str(caught.value).startswith(message)


def test_where_deepspeed_does_not_start_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ds_check.sys, "executable", "/bin/false")
    with pytest.raises(PreflightError, match="DeepSpeed cannot be asked about the config: no output"):
        check_ds_configs([{}])
    assert sys.executable == "/bin/false"
