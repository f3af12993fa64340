"""Where an exported file comes from: as a file of its own, and as the comment at the head of others."""

from __future__ import annotations

from typing import Any

import yaml

from raysweep.exports.answer import Answer
from raysweep.results.worth import best_known_rate
from raysweep.serde import sha256_of
from raysweep.units import format_bytes


def comment_lines(answer: Answer) -> list[str]:
    """Figures, versions, hardware, dates and hashes, a line each, without a comment sign."""
    record, sweep = answer.record, answer.sweep
    versions = ", ".join(f"{package} {version}" for package, version in sweep.versions.items())
    return [
        f"raysweep {sweep.versions.get('raysweep', '')}: {_role(answer)} of the sweep with the hash "
        f"{sweep.sweep_sha256[:12]}; exported {answer.exported_at}".replace("  ", " "),
        f"{_rate(answer)}; peak {format_bytes(record.peak_memory_bytes)} of "
        f"{format_bytes(record.memory_budget_bytes)} a worker",
        f"measured {record.started_at} on {record.world_size} workers, {answer.device}, {answer.workload.precision}",
        versions,
        *answer.move.sentences(),
    ]


def comment(answer: Answer, sign: str = "#") -> str:
    """The same as a comment."""
    return "".join(f"{sign} {line}\n" for line in comment_lines(answer))


def with_comment(answer: Answer, value: dict[str, Any]) -> str:
    """A mapping as YAML, below its provenance."""
    return comment(answer) + yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def provenance(answer: Answer) -> dict[str, Any]:
    """All of it as plain values; has the sections that `train_ray.py` reads: candidate, workload, resources."""
    candidate, record, move = answer.candidate, answer.record, answer.move
    return {
        "candidate": {
            "candidate_id": candidate.candidate_id,
            "is_winner": answer.is_winner,
            "zero_stage": candidate.zero_stage,
            "activation_checkpoint_interval": candidate.activation_checkpoint_interval,
            "micro_batch_size_per_gpu": candidate.micro_batch_size_per_gpu,
            "gradient_accumulation_steps": candidate.gradient_accumulation_steps,
            "attn_implementation": candidate.attn_implementation,
            "torch_compile": candidate.torch_compile,
            "deepspeed": dict(candidate.deepspeed),
        },
        "figures": {
            "confirmed": record.confirmed,
            "samples_per_s": best_known_rate(record),
            "samples_per_s_low": record.confirmed_samples_per_s_low,
            "samples_per_s_high": record.confirmed_samples_per_s_high,
            "search_samples_per_s": record.samples_per_s,
            "step_time_s_median": record.step_time_s_median,
            "peak_memory_bytes": record.peak_memory_bytes,
            "memory_budget_bytes": record.memory_budget_bytes,
            "recomputed_blocks": record.recomputed_blocks,
            "world_size": record.world_size,
            "global_batch_size": record.global_batch_size,
        },
        "exported_for": {
            "world_size": move.world_size,
            "global_batch_size": move.global_batch_size,
            "notes": move.sentences(),
        },
        "provenance": {
            "device": answer.device,
            "ds_config_sha256": sha256_of(dict(answer.ds_config)),
            "sweep_sha256": answer.sweep.sweep_sha256,
            "workload_sha256": answer.sweep.workload.workload_sha256(),
            "measured_at": record.started_at,
            "exported_at": answer.exported_at,
            "versions": dict(answer.sweep.versions),
        },
        "workload": answer.workload.described(),
        "resources_per_worker": dict(answer.sweep.resources_per_worker),
    }


def provenance_yaml(answer: Answer) -> str:
    """The same as YAML."""
    return yaml.safe_dump(provenance(answer), sort_keys=False, allow_unicode=True)


def _role(answer: Answer) -> str:
    name = answer.candidate.candidate_id
    if not answer.is_winner:
        return f"{name}, a candidate and not the winner,"
    return f"{name}, the winner" if answer.selection.confirmed else f"{name}, the best and not confirmed,"


def _rate(answer: Answer) -> str:
    record = answer.record
    low, high = record.confirmed_samples_per_s_low, record.confirmed_samples_per_s_high
    if record.confirmed and low is not None and high is not None:
        rate = record.confirmed_samples_per_s
        return f"{rate:.2f} samples/s, confirmed in fresh worker groups (95 % interval {low:.2f} to {high:.2f})"
    return f"{record.samples_per_s:.2f} samples/s in one launch of the search, not confirmed"
