"""Every exported file is loaded by the framework that it is for; nothing is trained here."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
import torch
import yaml
from builders import make_candidate, make_workload
from export_builders import make_answer
from kubernetes_schema import validate
from torch import nn

from raysweep.estimate.ds_check import check_ds_configs
from raysweep.exports.answer import Answer
from raysweep.exports.targets import write_targets
from raysweep.worker.blocks import find_block_lists
from raysweep.worker.model import build_model

STAGES = [0, 1, 2, 3]
RAYJOB_SCHEMA = Path(__file__).parent / "data" / "rayjob_v1_schema.json.gz"


@pytest.fixture(params=STAGES, ids=lambda stage: f"stage{stage}")
def answer(request: pytest.FixtureRequest) -> Answer:
    return make_answer(
        make_candidate(zero_stage=request.param, activation_checkpoint_interval=2, gradient_accumulation_steps=2)
    )


def _exported(answer: Answer, target: str, folder: Path) -> Path:
    write_targets(answer, [target], folder)
    return folder / target


def _imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An exported module, beside whose name the others of its folder are found."""
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, "checkpoint_blocks", raising=False)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_deepspeed_knows_every_key(answer: Answer, tmp_path: Path) -> None:
    config = json.loads((_exported(answer, "deepspeed", tmp_path) / "ds_config.json").read_text())
    check_ds_configs([config])


def _launch_arguments(config: Path) -> argparse.Namespace:
    """What `accelerate launch --config_file` makes of a config."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    given = launch_command_parser().parse_args(["--config_file", str(config), "train.py"])
    arguments, defaults, _ = _validate_launch_command(given)
    arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    return cast(argparse.Namespace, arguments)


def test_accelerate_reads_its_config(answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    folder = _exported(answer, "accelerate", tmp_path)
    arguments = _launch_arguments(folder / "accelerate_deepspeed.yaml")
    assert arguments.use_deepspeed and arguments.num_processes == 2
    for name, value in prepare_deepspeed_cmd_env(arguments)[1].items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == answer.candidate.zero_stage and plugin.gradient_accumulation_steps == 2
    assert plugin.deepspeed_config["train_micro_batch_size_per_gpu"] == 2
    assert plugin.zero3_init_flag is (answer.candidate.zero_stage == 3)


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerate_reads_the_fsdp2_counterpart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    folder = _exported(make_answer(make_candidate(zero_stage=stage)), "accelerate", tmp_path)
    arguments = _launch_arguments(folder / "accelerate_fsdp2.yaml")
    assert arguments.use_fsdp and arguments.mixed_precision == "bf16"
    for name, value in prepare_multi_gpu_env(arguments).items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is (stage == 3)


def test_transformers_takes_arguments_and_config_as_one(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    folder = _exported(answer, "hf", tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); from trainer_hf import read_arguments; "
        "a = read_arguments(output_dir='out'); c = a.hf_deepspeed_config; c.trainer_config_finalize(a, None, 10); "
        "print(a.per_device_train_batch_size, a.gradient_accumulation_steps, c.mismatches, "
        "c.get_value('zero_optimization.stage'))"
    )
    ran = _python(code, tmp_path)
    assert ran.stdout.splitlines()[-1] == f"2 2 [] {answer.candidate.zero_stage}", ran.stderr


def _python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # A process of its own: DeepSpeed's communication is started once a process.
    environment = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_lightning_takes_config_and_arguments_as_one_b19(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    folder = _exported(answer, "lightning", tmp_path)
    exported = _imported(folder / "trainer_lightning.py", monkeypatch)
    arguments = exported.read_arguments()
    assert arguments["accumulate_grad_batches"] == 2
    # What Lightning does with the config once it knows its module; the strategy itself asks for CUDA.
    strategy = exported.make_strategy()
    trainer = SimpleNamespace(gradient_clip_val=None, accumulate_grad_batches=arguments["accumulate_grad_batches"])
    strategy._lightning_module = SimpleNamespace(trainer=trainer)
    strategy._init_config_if_needed()
    assert strategy.config["gradient_accumulation_steps"] == 2
    assert strategy.config["zero_optimization"]["stage"] == answer.candidate.zero_stage
    assert strategy.config["train_micro_batch_size_per_gpu"] == 2


def test_lightning_s_trainer_knows_every_argument_b19(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    arguments = json.loads((_exported(make_answer(), "lightning", tmp_path) / "lightning_trainer.json").read_text())
    assert lightning.Trainer(**{**arguments, "accelerator": "cpu"}, logger=False).accumulate_grad_batches == 2


def test_lightning_s_mixin_checkpoints_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    exported = _imported(_exported(make_answer(), "lightning", tmp_path) / "trainer_lightning.py", monkeypatch)

    class Module(exported.CheckpointedBlocks, lightning.LightningModule):  # type: ignore[misc,name-defined]
        def build_model(self) -> nn.Module:
            return build_model(make_workload().model)

    module = Module()
    module.configure_model()
    module.configure_model()
    assert _wrapped(module) == 2


def _wrapped(model: nn.Module) -> int:
    return sum(1 for name, _ in model.named_modules() if name.endswith("_checkpoint_wrapped_module"))


def test_ray_s_script_reads_what_lies_beside_it(answer: Answer, tmp_path: Path) -> None:
    from raysweep.candidate import Candidate
    from raysweep.serde import from_dict
    from raysweep.workload import Workload

    folder = _exported(answer, "ray", tmp_path)
    best = yaml.safe_load((folder / "best.yaml").read_text())
    assert from_dict(Workload, best["workload"]) == answer.workload
    assert Candidate(**{name: best["candidate"][name] for name in CANDIDATE}) == answer.candidate
    ran = subprocess.run(
        [sys.executable, str(folder / "train_ray.py"), "--help"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0 and "--steps" in ran.stdout


CANDIDATE = (
    "zero_stage",
    "activation_checkpoint_interval",
    "micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


def _launched(script: Path, launcher: str, **environment: str) -> list[str]:
    """The arguments that a shell script hands to a launcher."""
    stub = script.parent / launcher
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    path = {"PATH": f"{script.parent}:/usr/bin:/bin"}
    command = ["bash", str(script), "--steps", "3"]
    ran = subprocess.run(command, env=path | environment, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


@pytest.mark.parametrize(("world_size", "nodes", "on_each"), [(2, "1:1", 2), (8, "4:4", 2), (3, "3:3", 1)])
def test_torchrun_reads_its_command(tmp_path: Path, world_size: int, nodes: str, on_each: int) -> None:
    from torch.distributed.run import config_from_args, parse_args

    answer = make_answer(world_size=world_size, nodes=("n0", "n0"))
    folder = _exported(answer, "torchrun", tmp_path)
    parsed = parse_args(_launched(folder / "launch_torchrun.sh", "torchrun"))
    config, _, script_arguments = config_from_args(parsed)
    assert f"{config.min_nodes}:{config.max_nodes}" == nodes and config.nproc_per_node == on_each
    assert script_arguments[-2:] == ["--steps", "3"] and Path(parsed.training_script).exists()


def test_the_deepspeed_launcher_reads_its_command(tmp_path: Path) -> None:
    from deepspeed.launcher.runner import parse_args

    folder = _exported(make_answer(nodes=("n0", "n0")), "torchrun", tmp_path)
    parsed = parse_args(_launched(folder / "launch_deepspeed.sh", "deepspeed"))
    assert parsed.num_gpus == 2 and parsed.user_args == ["--steps", "3"] and Path(parsed.user_script).exists()


def test_the_batch_script_hands_torchrun_its_nodes(tmp_path: Path) -> None:
    from torch.distributed.run import parse_args

    answer = make_answer(world_size=4, workload=make_workload(device="cuda"), nodes=("n0", "n0"))
    script = _exported(answer, "slurm", tmp_path) / "train.sbatch"
    for name, text in {"srun": 'shift\nprintf "%s\\n" "$@"', "scontrol": "printf 'n7\\nn8\\n'"}.items():
        (script.parent / name).write_text(f"#!/bin/sh\n{text}\n")
        (script.parent / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "n[7-8]", "SLURM_JOB_ID": "41", "SLURM_SUBMIT_DIR": str(script.parent)}
    environment = job | {"PATH": f"{script.parent}:/usr/bin:/bin"}
    ran = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True)
    parsed = parse_args(ran.stdout.splitlines())
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.rdzv_endpoint) == ("2", "2", "n7:20041")
    directives = [line.split()[1] for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2", "--cpus-per-task=8"} <= set(directives)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kubernetes_takes_the_manifest(tmp_path: Path, device: str) -> None:
    answer = make_answer(world_size=4, workload=make_workload(device=device), nodes=("n0", "n0"))
    path = _exported(answer, "kuberay", tmp_path) / "rayjob.yaml"
    files, job = yaml.safe_load_all(path.read_text())
    _validate(job)
    workers = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert workers["replicas"] == 2
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits.get("nvidia.com/gpu") == ("2" if device == "cuda" else None)
    # A ConfigMap holds at most 1 MiB, and text only.
    assert files["kind"] == "ConfigMap" and sum(len(text.encode()) for text in files["data"].values()) < 2**20
    assert json.loads(files["data"]["ds_config.json"]) == answer.ds_config
    compile(files["data"]["train_ray.py"], "train_ray.py", "exec")


def _validate(job: dict[str, Any]) -> None:
    validate(job, RAYJOB_SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [("entrypointt", "x"), ("backoffLimit", "none"), ("rayClusterSpec", {"workerGroupSpecs": "one"})],
)
def test_the_schema_refuses_a_wrong_manifest(tmp_path: Path, path: str, value: Any) -> None:
    _, job = yaml.safe_load_all((_exported(make_answer(), "kuberay", tmp_path) / "rayjob.yaml").read_text())
    job["spec"][path] = value
    with pytest.raises(jsonschema.ValidationError):
        _validate(job)


MODELS: dict[str, dict[str, Any]] = {
    "gpt": dict(make_workload().model),
    "bert": {"config_class": "BertConfig", "head": "masked"},
    "t5": {"config_class": "T5Config", "head": "seq2seq", "overrides": {"num_layers": 3, "d_model": 32, "d_ff": 64}},
    "llama": {"config_class": "LlamaConfig", "overrides": {"num_hidden_layers": 4, "vocab_size": 99}},
}
HF = {"kind": "hf", "config": None, "overrides": {}, "head": "causal", "attn_implementation": None, "lora": None}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("interval", [0, 1, 3])
def test_the_exported_code_finds_the_blocks_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, interval: int
) -> None:
    model = MODELS[name] if name == "gpt" else HF | {"block_lists": []} | MODELS[name]
    answer = make_answer(make_candidate(activation_checkpoint_interval=interval))
    exported = _imported(_exported(answer, "deepspeed", tmp_path) / "checkpoint_blocks.py", monkeypatch)
    with torch.device("meta"):
        built = build_model(model)
    lists = find_block_lists(built)
    assert [id(each) for each in exported.find_block_lists(built)] == [id(each) for each in lists]
    expected = sum(answer.candidate.recomputed_blocks(len(blocks)) for blocks in lists)
    assert exported.checkpoint_blocks(built) == expected == _wrapped(built)


def test_the_exported_code_takes_named_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = make_workload(model={**make_workload().model, "block_lists": ["layers"]})
    answer = make_answer(make_candidate(activation_checkpoint_interval=1), workload=workload)
    exported = _imported(_exported(answer, "deepspeed", tmp_path) / "checkpoint_blocks.py", monkeypatch)
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model.large = nn.ModuleList([nn.Linear(9, 9)])
    assert exported.checkpoint_blocks(model) == 2
    with pytest.raises(ValueError, match="'layers' must name one list of modules; known: none"):
        exported.checkpoint_blocks(nn.Linear(2, 2))
