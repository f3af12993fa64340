"""The words of a report that HTML and Markdown share: the model, the conditions, the answer, the cost, provenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from raysweep.objective import Goal
from raysweep.page.facts import ReportFacts
from raysweep.results.payback import payback
from raysweep.results.records import TrialRecord
from raysweep.results.worth import format_value
from raysweep.units import format_bytes, format_seconds


def model_name(model: Mapping[str, Any]) -> str:
    """What a model section is called: its class, factory, file, or the size of the built-in GPT."""
    for key in ("config_class", "factory", "trainer", "loop"):
        if model.get(key):
            return str(model[key])
    config = model.get("config")
    if isinstance(config, Mapping):
        return str(config.get("model_type", "a transformers config"))
    if model.get("kind") == "gpt" and "blocks" in model:
        return f"GPT of {model['blocks']} blocks, hidden {model['hidden']}"
    return str(model.get("kind", "model"))


def conditions(facts: ReportFacts) -> str:
    """Workers, device, precision and sequence length."""
    workload = facts.sweep.workload
    workers = ", ".join(str(size) for size in sorted({record.world_size for record in facts.records}))
    return (
        f"{workers or workload.world_size} workers on {device(facts)}, {workload.precision}, "
        f"{workload.tokens_per_sample} tokens a sample"
    )


def device(facts: ReportFacts) -> str:
    """`cpu`, or the GPU's model, as the workers told it; what was asked for where none did."""
    told = [launch.figures.device for launch in facts.search_launches if launch.figures]
    return told[-1] if told else facts.sweep.workload.device


def rate_and_interval(facts: ReportFacts) -> tuple[str, str]:
    """The winner's samples/s and its 95 % interval; both empty where there is none."""
    selection = facts.selection
    if selection.samples_per_s is None:
        return "", ""
    low, high = selection.samples_per_s_low, selection.samples_per_s_high
    interval = f"{low:.2f} to {high:.2f}" if selection.confirmed and low is not None and high is not None else ""
    return f"{selection.samples_per_s:.2f}", interval


def memory(record: TrialRecord) -> tuple[str, int | None]:
    """Peak against budget in words, and the share in percent where both are known."""
    peak_bytes, budget_bytes = record.peak_memory_bytes, record.memory_budget_bytes
    told = f"peak {format_bytes(peak_bytes)} of {format_bytes(budget_bytes)} a worker"
    if peak_bytes is None or not budget_bytes:
        return told, None
    share = round(100 * peak_bytes / budget_bytes)
    return f"{told} ({share} %)", share


def cost(facts: ReportFacts) -> str:
    """Launches, groups, how long these were up, and after how much training that is earned back."""
    paid_back = ""
    if facts.winner and facts.group_s:
        paid_back = payback(facts.records, winner=facts.winner.candidate_id, wall_s=facts.group_s)
    worker_hours = facts.group_s * facts.sweep.workload.world_size / 3600
    return (
        f"{facts.launches} launches in {facts.group_starts} worker groups, which were up for "
        f"{format_seconds(facts.group_s)} ({worker_hours:.2f} worker-hours)" + (f". {paid_back}" if paid_back else "")
    )


def provenance(facts: ReportFacts) -> list[tuple[str, str]]:
    """Names and values."""
    sweep = facts.sweep
    return [
        ("Sweep (SHA-256)", sweep.sweep_sha256),
        ("Workload (SHA-256)", sweep.workload.workload_sha256()),
        ("Started", sweep.started_at),
        ("Device", device(facts)),
        *objective(facts),
        ("Memory budget", f"{format_bytes(sweep.memory_budget_bytes)} a worker"),
        *((package, version) for package, version in sweep.versions.items()),
        *((f"Environment {name}", value) for name, value in sorted(sweep.workload.environment.items())),
    ]


def objective(facts: ReportFacts) -> list[tuple[str, str]]:
    """The objective with the winner's value; nothing where it is samples/s, which the report tells anyway."""
    selection = facts.selection
    if selection.objective.goal is Goal.SAMPLES_PER_S or selection.value is None:
        return []
    return [("Objective", format_value(selection.value, selection.objective))]


def reproduce(facts: ReportFacts) -> str:
    """The commands, for a shell."""
    folder = shlex.quote(f"results/{facts.name}")
    return (
        "raysweep run sweep.yaml                 # the copy that lies in the results folder\n"
        f"raysweep export {folder} --to all\n"
        f"raysweep report {folder}"
    )
