"""Each of the five outcomes of the decision rule, reached by numbers."""

from __future__ import annotations

from raysweep.rule import Needs, decide
from raysweep.units import GIB


def needs(**changed_gib: float) -> Needs:
    """The needs, in GiB, of a model that fits nowhere; each test lowers one."""
    sizes = {
        "one_device": 400,
        "replica": 150,
        "replica_checkpointed": 130,
        "stage2": 100,
        "stage3": 90,
        "single_layer": 2,
        "budget": 80,
    }
    return Needs(
        **{f"{name}_bytes": size * GIB for name, size in {**sizes, **changed_gib}.items()},  # type: ignore[arg-type]
        world_size=8,
    )


def test_rule_1_everything_fits_on_one_device() -> None:
    answer = decide(needs(one_device=79))
    assert (answer.rule, answer.zero_stage, answer.checkpointing, answer.fits) == (1, 0, False, True)
    assert "79.0 GiB of 80.0 GiB" in answer.text


def test_rule_2_a_replica_fits() -> None:
    answer = decide(needs(replica=70, replica_checkpointed=60))
    assert (answer.rule, answer.zero_stage, answer.checkpointing) == (2, 0, False)
    assert "70.0 GiB of 80.0 GiB" in answer.text and "only with" not in answer.text


def test_rule_2_says_when_a_replica_fits_only_with_checkpointing() -> None:
    answer = decide(needs(replica=90, replica_checkpointed=60))
    assert (answer.rule, answer.checkpointing) == (2, True)
    assert "only with activation checkpointing (90.0 GiB without)" in answer.text


def test_rule_3_the_optimizer_state_is_what_does_not_fit() -> None:
    answer = decide(needs(stage2=27))
    assert (answer.rule, answer.zero_stage, answer.checkpointing, answer.fits) == (3, 2, True, True)
    assert "130.0 GiB" in answer.text and "27.0 GiB of 80.0 GiB" in answer.text


def test_rule_4_the_parameters_do_not_fit() -> None:
    answer = decide(needs(stage3=40))
    assert (answer.rule, answer.zero_stage, answer.fits) == (4, 3, True)
    assert "measure what it costs" in answer.text


def test_rule_4_names_the_devices_that_would_do() -> None:
    answer = decide(needs(stage3=158))
    assert (answer.rule, answer.fits) == (4, False)
    assert "about 16" in answer.text


def test_rule_5_a_single_layer_does_not_fit() -> None:
    answer = decide(needs(single_layer=81))
    assert (answer.rule, answer.zero_stage, answer.fits) == (5, None, False)
    assert "Tensor parallelism" in answer.text and "81.0 GiB of 80.0 GiB" in answer.text
