"""Accelerate: a config for its DeepSpeed plugin, and the FSDP2 counterpart where there is one."""

from __future__ import annotations

from typing import Any

from raysweep.exports.answer import Answer
from raysweep.exports.deepspeed_files import CONFIG, companions, ds_config_json
from raysweep.exports.provenance import with_comment
from raysweep.exports.text_templates import fill

DEEPSPEED_YAML = "accelerate_deepspeed.yaml"
FSDP2_YAML = "accelerate_fsdp2.yaml"
FSDP2_STAGES = {2: False, 3: True}
"""Stage -> whether FSDP2 shards parameters again after forward; stages 0 and 1 have no counterpart."""
FSDP2_DIFFERENCES = (
    "Not measured: no figure of this sweep holds for FSDP2. What differs from the DeepSpeed config:",
    "- FSDP2 keeps sharded fp32 parameters and casts them for forward and backward; DeepSpeed keeps 16-bit parameters",
    "  and fp32 masters in the optimizer.",
    "- Communication is by wrapped module, so DeepSpeed's bucket sizes, prefetch and persistence thresholds have no",
    "  place here.",
    "- Stage 2 becomes reshard_after_forward false: parameters are sharded at rest and gathered once a micro-step.",
    "  DeepSpeed's stage 2 keeps them whole.",
    "- The optimizer, gradient clipping and accumulation are those of your code, not of this file.",
)


def accelerate_files(answer: Answer) -> dict[str, str]:
    """A config for `accelerate launch`, and the code that prepares model, optimizer and data loader."""
    files = {
        CONFIG: ds_config_json(answer),
        DEEPSPEED_YAML: with_comment(answer, _deepspeed(answer)),
        "prepare_accelerate.py": fill("prepare_accelerate.py.j2", answer),
        **companions(answer),
    }
    if answer.candidate.zero_stage in FSDP2_STAGES:
        notes = "".join(f"# {line}\n" for line in FSDP2_DIFFERENCES)
        files[FSDP2_YAML] = (
            f"{notes}# The DeepSpeed config whose counterpart this is:\n{with_comment(answer, _fsdp2(answer))}"
        )
    return files


def _shared(answer: Answer) -> dict[str, Any]:
    placement = answer.placement
    several = {"machine_rank": 0, "main_process_ip": "HEAD_ADDRESS", "main_process_port": 29500}
    return {
        "num_machines": placement.nodes,
        "num_processes": placement.world_size,
        **(several if placement.nodes > 1 else {}),
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
    }


def _deepspeed(answer: Answer) -> dict[str, Any]:
    # Precision, batch and accumulation stand in the DeepSpeed config; Accelerate refuses them in both places.
    several = {"deepspeed_multinode_launcher": "standard"} if answer.placement.nodes > 1 else {}
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "deepspeed_config_file": CONFIG,
            **several,
            "zero3_init_flag": answer.candidate.zero_stage == 3,
        },
        **_shared(answer),
        "use_cpu": False,
    }


def _fsdp2(answer: Answer) -> dict[str, Any]:
    precision = "no" if answer.workload.precision == "fp32" else answer.workload.precision
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": precision,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": FSDP2_STAGES[answer.candidate.zero_stage],
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": False,
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        **_shared(answer),
        "use_cpu": not answer.on_cuda,
    }
