"""`raysweep run`: runs a sweep, shows how far it is, then the winner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import typer
from rich.console import Console

from raysweep.cli.live import LiveTable
from raysweep.cli.progress import Lines
from raysweep.cli.report import live_server
from raysweep.cli.tracing import trace_with_bar
from raysweep.objective import Goal
from raysweep.page.live_server import is_loopback, parse_address
from raysweep.plan import make_plan
from raysweep.results.paths import local_folder
from raysweep.results.payback import payback
from raysweep.results.records import TrialRecord
from raysweep.results.scaling import render_scaling
from raysweep.results.side_by_side import render_side_by_side
from raysweep.results.worth import format_value
from raysweep.search.pruning import Pruning
from raysweep.search.sweep_result import SweepResult
from raysweep.search.sweep_run import run_sweep
from raysweep.sweep_file import Sweep
from raysweep.units import format_bytes, format_seconds

UNCONFIRMED = 5
ASK_ABOVE_WORKER_HOURS = 1.0
"""A sweep that is expected to take more is asked about, where a person can answer."""


def run(
    sweep: Sweep,
    *,
    address: str | None,
    resume: bool,
    retry_failed: bool,
    overwrite: bool,
    yes: bool,
    check: bool = True,
    serve: str | None = None,
    force: bool = False,
    audit_share: float = 0.0,
    calibrates: bool = True,
) -> None:
    """Run a sweep; `serve` is the [HOST:]PORT of its live report.

    Raises:
        typer.Exit: with code 5 when the best was not confirmed.
        typer.Abort: when a person at a terminal does not want what it costs.
    """
    console = Console()
    if console.is_terminal and not yes:
        _ask(sweep)
    with (
        _served(sweep, serve),
        LiveTable(sweep, console) if console.is_terminal else nullcontext(Lines(sweep)) as observer,
    ):
        result = run_sweep(
            sweep,
            observer=observer,
            address=address,
            resume=resume,
            retry_failed=retry_failed,
            overwrite=overwrite,
            check=check,
            pruning=Pruning(force=force, audit_share=audit_share, tracer=trace_with_bar, calibrates=calibrates),
        )
    typer.echo(summary(result))
    if not result.selection.confirmed:
        raise typer.Exit(UNCONFIRMED)


@contextmanager
def _served(sweep: Sweep, address: str | None) -> Iterator[None]:
    """The report is served inside, where an address is given."""
    if address is None:
        yield
        return
    with live_server(local_folder(sweep.results), address=address) as server:
        typer.echo(f"report while it runs: {server.url}")
        if not is_loopback(parse_address(address)[0]):
            typer.echo("  whoever reaches this machine can read it, the sweep file included; there is no password")
        yield


def _ask(sweep: Sweep) -> None:
    hours = make_plan(sweep).cost.worker_hours
    if hours > ASK_ABOVE_WORKER_HOURS:
        typer.confirm(f"This is expected to take {hours:.1f} worker-hours. Go on?", abort=True)


def summary(result: SweepResult) -> str:
    """The winner, by how much, what it cost, and where its files are."""
    selection = result.selection
    assert selection.winner is not None and selection.samples_per_s is not None, "no winner is an error before this"
    interval = ""
    if selection.samples_per_s_low is not None and selection.samples_per_s_high is not None:
        interval = f" (95 % interval {selection.samples_per_s_low:.2f} to {selection.samples_per_s_high:.2f})"
    winner = next(record for record in result.records if record.candidate_id == selection.winner)
    most_workers = max(record.world_size for record in result.records)
    state = "confirmed" if selection.confirmed else "NOT confirmed"
    lines = [
        "",
        f"Winner, {state}: {selection.winner}: {selection.samples_per_s:.2f} samples/s{interval}",
        f"  ZeRO stage {winner.zero_stage}, activation checkpoint interval {winner.activation_checkpoint_interval}, "
        f"micro-batch {winner.micro_batch_size_per_gpu}, accumulation {winner.gradient_accumulation_steps}",
        f"  peak {format_bytes(winner.peak_memory_bytes)} of {format_bytes(winner.memory_budget_bytes)} a worker",
    ]
    if winner.world_size != most_workers or winner.attn_implementation or winner.torch_compile:
        lines.append("  " + ", ".join(_program(winner)))
    if winner.deepspeed != "{}":
        lines.append("  " + ", ".join(f"{key} {value}" for key, value in json.loads(winner.deepspeed).items()))
    if selection.objective.goal is not Goal.SAMPLES_PER_S and selection.value is not None:
        lines.append(f"  by the objective: {format_value(selection.value, selection.objective)}")
    if len(selection.pareto_front) > 1:
        lines.append(f"  Pareto front of speed and memory: {', '.join(selection.pareto_front)}")
    if winner.activation_checkpoint_interval:
        lines.append(
            "  ds_config.json cannot hold the checkpointing: best/train_ray.py has it; in a loop of your own "
            f"recompute every block i with i % {winner.activation_checkpoint_interval} == 0"
        )
    if selection.runner_up:
        lines.append(f"Runner-up: {selection.runner_up}: {selection.runner_up_reason}")
    comparison = render_side_by_side(result.records)
    if comparison:
        lines += ["", comparison, ""]
    scaling = render_scaling(result.records)
    if scaling:
        lines += [scaling, ""]
    paid_back = payback(result.records, winner=selection.winner, wall_s=result.wall_s)
    lines += [
        *filter(None, [paid_back]),
        f"Spent: {result.launches} launches in {result.group_starts} worker groups, {format_seconds(result.wall_s)}, "
        f"{result.wall_s * most_workers / 3600:.2f} worker-hours; the search ended because {result.stop_reason}",
        f"Files: {result.folder}/best/ds_config.json, {result.folder}/trials.parquet; raysweep show {result.folder}",
    ]
    return "\n".join(lines)


def _program(winner: TrialRecord) -> list[str]:
    """What the winner has of further axes that are no DeepSpeed keys."""
    return [
        f"{winner.world_size} workers",
        *([f"{winner.attn_implementation} attention"] if winner.attn_implementation else []),
        *(["blocks compiled by torch.compile"] if winner.torch_compile else []),
    ]
