"""Exports for other frameworks: plain values, provenance, and the batch arithmetic of other worker counts."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import SMALL_BUCKETS, make_candidate, make_workload
from export_builders import finished_sweep, make_answer, write_journal
from results_builders import failed
from typer.testing import CliRunner

from raysweep.cli.main import app
from raysweep.errors import ConfigError
from raysweep.exports.answer import Answer, choose_answer
from raysweep.exports.batch_move import BatchMove
from raysweep.exports.placement import place
from raysweep.exports.targets import TARGETS, parse_targets, write_targets
from raysweep.results.journal import JournalContents
from raysweep.trial import MemoryKind, TrialStatus

FLOATS_WHERE_WHOLE = {"max_grad_norm", "weight_decay", "lr", "learning_rate", "gradient_clipping", "eps"}
"""Fields that their frameworks declare as floats, so 0.0 is right there."""
LISTS = {"betas", "nodes", "files", "notes", "block_lists"}
"""Fields that take a list; everything of Kubernetes is left out here, because its schema is checked."""
CUDA = {"device": "cuda", "environment": {"NCCL_DEBUG": "WARN", "NOTE": "it's $HOME; `id`"}}


def answers() -> Iterator[Answer]:
    """Every stage, on CPU and CUDA, in each precision, with and without a further axis, on other workers too."""
    for stage in range(4):
        for precision in ("bf16", "fp16", "fp32"):
            candidate = make_candidate(
                zero_stage=stage,
                activation_checkpoint_interval=stage,
                deepspeed={"zero_optimization.overlap_comm": True} if stage % 2 else {},
            )
            base = {"zero_optimization": {**SMALL_BUCKETS, "reduce_bucket_size": 500_000_000}, "gradient_clipping": 1.0}
            workload = make_workload(precision=precision, **(CUDA if precision != "fp32" else {}))
            yield make_answer(candidate, workload=workload, base=base, world_size=None if stage else 6)


def _all_texts() -> Iterator[tuple[str, str]]:
    for answer in answers():
        for target, files in TARGETS.items():
            for name, text in files(answer).items():
                yield f"{answer.candidate.candidate_id}/{answer.workload.precision}/{target}/{name}", text


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif (isinstance(value, list) and path[-1] not in LISTS) or not isinstance(value, list):
        yield path, value


def _wrong(value: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Values that a framework would refuse or fill in by itself."""
    return [
        (path, leaf)
        for path, leaf in _leaves(value)
        if leaf == "auto"
        or isinstance(leaf, list)
        or (isinstance(leaf, float) and leaf.is_integer() and path[-1] not in FLOATS_WHERE_WHOLE | {"CPU", "GPU"})
    ]


def test_the_check_of_values_finds_what_it_looks_for() -> None:
    bad = {"a": "auto", "zero_optimization": {"stage": [2]}, "train_micro_batch_size_per_gpu": 4.0}
    assert [path[-1] for path, _ in _wrong(bad)] == ["a", "stage", "train_micro_batch_size_per_gpu"]


def test_no_auto_no_list_for_a_scalar_no_float_for_an_integer_b21() -> None:
    checked = 0
    for name, text in _all_texts():
        if name.endswith(".json"):
            assert _wrong(json.loads(text)) == [], name
        elif name.endswith((".yaml", ".yml")) and "rayjob" not in name:
            told = {key: value for key, value in yaml.safe_load(text).items() if key not in ("figures", "workload")}
            assert _wrong(told) == [], name
        assert not re.search(r"""["'\s:=]auto["'\s,}]""", re.sub(r"--address auto", "", text)), name
        checked += 1
    assert checked > 12 * 20


def test_every_file_tells_where_it_comes_from() -> None:
    answer = make_answer()
    for target, files in TARGETS.items():
        texts = files(answer)
        for name, text in texts.items():
            if name.endswith(".json"):  # no comments: the provenance lies beside it
                assert {"provenance.yaml", "best.yaml"} & set(texts), (target, name)
            else:
                is_yaml = name in ("provenance.yaml", "best.yaml")
                told = ["5a5a5a5a5a5a", "2.13.0+cpu", "2026-01-01"]
                told += ["samples_per_s: 99.9", "world_size: 2"] if is_yaml else ["100.00 samples/s", "2 workers, cpu"]
                assert [each for each in told if each not in text] == [], (target, name)


def test_scripts_are_scripts() -> None:
    for name, text in _all_texts():
        if name.endswith(".py"):
            ast.parse(text)
        elif name.endswith((".sh", ".sbatch")):
            ran = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
            assert ran.returncode == 0, (name, ran.stderr)


def test_the_environment_survives_a_shell(tmp_path: Path) -> None:
    answer = make_answer(workload=make_workload(**CUDA))
    write_targets(answer, ["torchrun"], tmp_path)
    exports = [line for line in (tmp_path / "torchrun/launch_torchrun.sh").read_text().splitlines() if "NOTE" in line]
    shown = subprocess.run(
        ["bash", "-c", f'{exports[0]}; printf %s "$NOTE"'], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "it's $HOME; `id`"


def _stub_launcher(folder: Path, name: str) -> dict[str, str]:
    """PATH with a stand-in for a launcher, which prints its arguments, one a line."""
    (folder / name).write_text('#!/bin/sh\nfor each in "$@"; do printf "%s\\n" "$each"; done\n')
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_arguments_with_spaces_and_quotes_reach_the_script_b64(tmp_path: Path, launcher: str) -> None:
    folder = tmp_path / "my model dir" / "it's"
    write_targets(make_answer(), ["torchrun"], folder)
    given = ["I'm 72\" tall -4C", "--steps", "5", "$HOME"]
    ran = subprocess.run(
        [str(folder / f"torchrun/launch_{launcher}.sh"), *given],
        env=_stub_launcher(tmp_path, launcher),
        capture_output=True,
        text=True,
        check=True,
    )
    shown = ran.stdout.splitlines()
    assert shown[-5:] == [str(folder / "torchrun/train_deepspeed.py"), *given]


def test_the_config_is_what_was_measured_and_serves_any_number_of_workers() -> None:
    answer = make_answer(world_size=16)
    config = json.loads(TARGETS["deepspeed"](answer)["ds_config.json"])
    assert config == answer.ds_config and "train_batch_size" not in config


def test_lightning_gets_accumulation_as_an_argument_b19() -> None:
    files = TARGETS["lightning"](make_answer())
    assert "gradient_accumulation_steps" not in json.loads(files["ds_config.json"])
    assert json.loads(files["lightning_trainer.json"])["accumulate_grad_batches"] == 2


def test_hf_arguments_repeat_what_the_config_says() -> None:
    optimizer = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}}
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": 50, "warmup_num_steps": 5}}
    base = {"optimizer": optimizer, "gradient_clipping": 0.5, "scheduler": scheduler}
    told = json.loads(TARGETS["hf"](make_answer(base=base))["training_arguments.json"])
    assert told["learning_rate"] == 3e-4 and told["adam_beta2"] == 0.95 and told["adam_epsilon"] == 1e-6
    assert told["max_grad_norm"] == 0.5 and told["weight_decay"] == 0.1
    assert (told["max_steps"], told["warmup_steps"]) == (50, 5)


def test_fsdp2_is_there_for_stages_2_and_3_and_claims_no_figure() -> None:
    for stage in range(4):
        files = TARGETS["accelerate"](make_answer(make_candidate(zero_stage=stage)))
        assert ("accelerate_fsdp2.yaml" in files) == (stage >= 2)
        if stage >= 2:
            assert files["accelerate_fsdp2.yaml"].startswith("# Not measured: no figure of this sweep holds for FSDP2")
            config = yaml.safe_load(files["accelerate_fsdp2.yaml"])["fsdp_config"]
            assert config["fsdp_reshard_after_forward"] is (stage == 3)


def test_another_number_of_workers_moves_the_batch_and_the_learning_rate() -> None:
    move = BatchMove(
        micro_batch_size_per_gpu=4,
        gradient_accumulation_steps=8,
        measured_world_size=8,
        world_size=32,
        learning_rate=1e-3,
    )
    assert (move.measured_global_batch_size, move.global_batch_size) == (256, 1024)
    assert (move.learning_rate_linear, move.learning_rate_square_root) == (4e-3, 2e-3)
    assert move.accumulation_that_keeps_it == 2
    text = " ".join(move.sentences())
    assert "from 256 to 1024 samples" in text and "no figure is claimed for 32" in text and "Rules of thumb" in text


def test_where_no_accumulation_keeps_the_batch_that_is_said() -> None:
    answer = make_answer(world_size=3)
    assert answer.move.accumulation_that_keeps_it is None
    assert "No accumulation keeps 8 samples" in " ".join(answer.move.sentences())


def test_figures_are_those_of_the_workers_that_were_measured() -> None:
    told = yaml.safe_load(TARGETS["ray"](make_answer(world_size=8))["best.yaml"])
    assert told["figures"]["world_size"] == 2 and told["exported_for"]["world_size"] == 8
    assert told["workload"]["world_size"] == 8


@pytest.mark.parametrize(
    ("world_size", "nodes", "expected"),
    [
        (8, ["a"] * 8, (1, 8)),
        (16, ["a"] * 4 + ["b"] * 4, (4, 4)),
        (2, ["a"] * 8, (1, 2)),
        (12, ["a"] * 8, (2, 6)),
        (7, ["a"] * 4, (7, 1)),
        (3, [], (1, 3)),
    ],
)
def test_workers_are_spread_over_equal_nodes(world_size: int, nodes: list[str], expected: tuple[int, int]) -> None:
    placed = place(world_size, measured_nodes=nodes)
    assert (placed.nodes, placed.workers_per_node) == expected and placed.world_size == world_size


def test_unknown_targets_are_refused_with_the_nearest() -> None:
    assert parse_targets("hf, slurm,hf") == ["hf", "slurm"]
    assert parse_targets("all") == list(TARGETS)
    with pytest.raises(ConfigError, match=r"--to: 'acelerate': is no target.*nearest valid: accelerate"):
        parse_targets("hf,acelerate")
    with pytest.raises(ConfigError, match="names no target"):
        parse_targets(",")


def _with_an_oom() -> JournalContents:
    big = make_candidate(micro_batch_size_per_gpu=8)
    contents = finished_sweep(others=[big])
    out = failed(big.candidate_id, TrialStatus.OOM, memory_kind=MemoryKind.DEVICE, reason="too large")
    kept = [launch for launch in contents.measurements if launch.candidate_id != big.candidate_id]
    return JournalContents(sweeps=contents.sweeps, measurements=(*kept, out))


def test_a_candidate_without_figures_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has no figures: OOM, too large \(nearest valid: s2-k2-b2-g2\)"):
        choose_answer(_with_an_oom(), candidate_id="s2-k0-b8-g1")
    with pytest.raises(ConfigError, match=r"no candidate of this sweep.*nearest valid: s2-k2-b2-g2"):
        choose_answer(_with_an_oom(), candidate_id="s2-k2-b2-g3")


def test_another_candidate_is_not_called_the_winner(tmp_path: Path) -> None:
    other = make_candidate(micro_batch_size_per_gpu=1)
    folder = write_journal(tmp_path, finished_sweep(others=[other]))
    ran = CliRunner().invoke(app, ["export", str(folder), "--to", "all", "--candidate", other.candidate_id])
    assert ran.exit_code == 0, ran.output
    readme = (folder / "exports" / other.candidate_id / "README.md").read_text()
    assert "a candidate and not the winner" in readme and "not confirmed" in readme


def test_the_command_writes_where_it_is_told(tmp_path: Path) -> None:
    folder = write_journal(tmp_path / "results", finished_sweep())
    options = ["--to", "hf,kuberay", "--world-size", "4", "--output", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, ["export", str(folder), *options])
    assert ran.exit_code == 0 and "global batch moves from 8 to 16 samples" in ran.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "hf", "kuberay"]
    assert not (folder / "best").exists() and not (folder / "exports").exists()


@pytest.mark.parametrize("option", [["--candidate", "x"], ["--world-size", "2"], ["--output", "x"]])
def test_options_of_other_frameworks_need_to(tmp_path: Path, option: list[str]) -> None:
    ran = CliRunner().invoke(app, ["export", str(tmp_path), *option])
    assert ran.exit_code == 2 and "needs --to" in ran.output
