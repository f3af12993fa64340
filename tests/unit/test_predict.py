"""Predictions at another number of workers: against a truth of known rates, with links, batches and the command."""

from __future__ import annotations

import json
import math
import random
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from builders import make_measurement, make_workload
from results_builders import MIB, sweep
from typer.testing import CliRunner

from raysweep.candidate import Candidate
from raysweep.cli.main import app
from raysweep.cli.predict import parse_link
from raysweep.ds_config import prepare_base, render
from raysweep.errors import ConfigError, NothingSucceeded
from raysweep.probe import Probe
from raysweep.results.journal import Journal, JournalContents
from raysweep.results.paths import ResultsPaths
from raysweep.search.predict import Prediction, Scale, predict
from raysweep.search.prior import ASSUMED_RATES
from raysweep.serde import to_dict
from raysweep.step_work import step_work
from raysweep.trial import PlanRow
from raysweep.workload import Workload, gpt_shape
from raysweep.zero_settings import ZeroSettings

SHAPE = gpt_shape(blocks=8, hidden=256, vocab_size=1024, positions=128, tied=True)
WORKLOAD = make_workload(shape=SHAPE, world_size=2, global_batch_size=32, sequence_length=128)
BASE, _ = prepare_base({}, precision="bf16", optimizer=None)
CANDIDATES = [
    Candidate(
        zero_stage=stage,
        activation_checkpoint_interval=interval,
        micro_batch_size_per_gpu=micro_batch,
        gradient_accumulation_steps=16 // micro_batch,
    )
    for stage in range(4)
    for interval in (0, 1)
    for micro_batch in (2, 4, 8)
]


def true_s(candidate: Candidate, workload: Workload, rates: np.ndarray) -> float:
    config = render(candidate, workload=workload, base=BASE)
    return float(np.array(astuple(step_work(candidate, workload, ZeroSettings.from_ds_config(config)))) @ (1 / rates))


def drawn_rates(seed: int) -> np.ndarray:
    """Within a factor of 1.5 of the assumed ones: the proportions that a prior is to have about right."""
    rng = random.Random(seed)
    return np.array([rate * math.exp(rng.uniform(-0.4, 0.4)) for rate in astuple(ASSUMED_RATES["cpu"])])


def journal(rates: np.ndarray, *, probe: Probe | None = None, noise: float = 0.01) -> JournalContents:
    rng = random.Random(1)
    launches = []
    for each in CANDIDATES[::2]:
        time_s = true_s(each, WORKLOAD, rates) * math.exp(rng.gauss(0, noise))
        shown = make_measurement(
            each.candidate_id, step_time_s_median=time_s, step_time_s_iqr=0.0, samples_per_s=32 / time_s
        )
        launches.append(replace(shown, probe=probe))
    rows = tuple(PlanRow(candidate=each, world_size=2, global_batch_size=32) for each in CANDIDATES)
    start = sweep(*rows, workload=WORKLOAD, base_ds_config=BASE, memory_budget_bytes=500 * MIB)
    return JournalContents(sweeps=(start,), measurements=tuple(launches))


def by_family(predictions: list[Prediction]) -> dict[tuple[int, int, int], Prediction]:
    return {
        (e.candidate.zero_stage, e.candidate.activation_checkpoint_interval, e.candidate.micro_batch_size_per_gpu): e
        for e in predictions
    }


@pytest.mark.parametrize("seed", range(4))
def test_bands_hold_the_truth_of_a_machine_whose_rates_do_not_change(seed: int) -> None:
    """Stages 1 to 3, whose calls do not deepen with the tree where there are few of them, at four times the size."""
    rates = drawn_rates(seed)
    workload = replace(WORKLOAD, world_size=8, global_batch_size=128)
    predictions = predict(journal(rates), Scale(world_size=8, global_batch_size=128))
    assert len(predictions) == len(CANDIDATES)
    errors, inside = [], []
    for each in predictions:
        rate = 128 / true_s(each.candidate, workload, rates)
        errors.append(abs(each.samples_per_s / rate - 1))
        inside.append(each.samples_per_s_low <= rate <= each.samples_per_s_high)
    assert np.median(errors) < 0.1
    assert np.mean(inside) >= 0.85


def test_the_accumulation_follows_from_the_batch_and_the_batch_may_be_given() -> None:
    contents = journal(drawn_rates(0))
    assert {each.global_batch_size for each in predict(contents, Scale(world_size=4))} == {32}
    larger = predict(contents, Scale(world_size=4, global_batch_size=64))
    assert {e.candidate.gradient_accumulation_steps * e.candidate.micro_batch_size_per_gpu for e in larger} == {16}


def test_a_batch_that_cannot_be_shared_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="64 workers cannot share it") as caught:
        predict(journal(drawn_rates(0)), Scale(world_size=64))
    assert "64" in caught.value.data["nearest"]


def test_a_slow_link_costs_those_most_who_send_most() -> None:
    contents = journal(drawn_rates(0))
    scale = Scale(world_size=8, global_batch_size=128)
    near = by_family(predict(contents, replace(scale, link_bytes_per_s=1e12)))
    far = by_family(predict(contents, replace(scale, link_bytes_per_s=1e7)))
    slower = {family: near[family].samples_per_s / far[family].samples_per_s for family in near}
    assert min(slower.values()) > 1
    assert slower[2, 0, 2] > slower[0, 0, 2], "stage 2 sends in every micro-step"


def test_what_was_hidden_stays_hidden_where_a_micro_benchmark_knows_the_link() -> None:
    probe = Probe(
        matmul_s=((256, 1e-3),),
        copy_s=((1_000_000, 1e-3),),
        all_reduce_s=((1000, 1e-5), (1_000_000, 1e-2)),
        all_gather_s=((1000, 1e-5), (1_000_000, 1e-2)),
    )
    scale = Scale(world_size=8, global_batch_size=128, link_bytes_per_s=1e7)
    without = by_family(predict(journal(drawn_rates(0)), scale))
    with_probe = by_family(predict(journal(drawn_rates(0), probe=probe), scale))
    # It met 1e8 bytes/s where the fit found about 1e9: nine tenths were hidden.
    assert with_probe[2, 0, 2].samples_per_s > 2 * without[2, 0, 2].samples_per_s


def test_without_a_launch_there_is_nothing_to_predict_from() -> None:
    contents = journal(drawn_rates(0))
    with pytest.raises(NothingSucceeded):
        predict(replace(contents, measurements=()), Scale(world_size=8))


def test_what_does_not_fit_comes_last() -> None:
    contents = journal(drawn_rates(0))
    tight = replace(contents.sweep, memory_budget_bytes=200 * MIB)
    fits = [
        each.fits for each in predict(replace(contents, sweeps=(tight,)), Scale(world_size=8, global_batch_size=128))
    ]
    assert fits == sorted(fits, reverse=True)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("25GB/s", 25e9),
        ("200Gbit/s", 25e9),
        ("200 Mbit/s", 25e6),
        ("1GiB/s", 2**30),
        ("100Gbps", 12.5e9),
        ("fast", None),
        ("0GB/s", None),
    ],
)
def test_links_are_read_as_people_write_them(text: str, rate: float | None) -> None:
    if rate is None:
        with pytest.raises(typer.BadParameter, match="25GB/s or 200Gbit/s"):
            parse_link(text)
    else:
        assert parse_link(text) == rate


def _written(folder: Path) -> str:
    contents = journal(drawn_rates(0))
    with Journal.open(ResultsPaths(str(folder)).journal) as file:
        file.append("sweep", to_dict(contents.sweep))
        for each in contents.measurements:
            file.append("measurement", to_dict(each))
    return str(folder)


def test_the_command_calls_it_a_prediction_and_gives_its_band(tmp_path: Path) -> None:
    arguments = ["predict", _written(tmp_path), "--workers", "64", "--link", "25GB/s", "--global-batch", "1024"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert "PREDICTION for 64 workers, links of 25 GB/s, from 12 candidates measured at 2" in told.output
    assert "Nothing was run at this size" in told.output and "%" in told.output
    rows: list[dict[str, Any]] = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert len(rows) == len(CANDIDATES)
    assert all(row["samples_per_s_low"] < row["samples_per_s"] < row["samples_per_s_high"] for row in rows)


def test_the_command_refuses_a_batch_and_a_link_that_cannot_be(tmp_path: Path) -> None:
    results = _written(tmp_path)
    batch = CliRunner().invoke(app, ["predict", results, "--workers", "64"])
    assert batch.exit_code == 2 and "nearest valid: 64" in batch.output
    assert CliRunner().invoke(app, ["predict", results, "--workers", "4", "--link", "fast"]).exit_code == 2
