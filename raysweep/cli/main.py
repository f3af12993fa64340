"""Knows the verbs with their options, and loads the one that is asked for."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer

from raysweep import __version__
from raysweep.cli.job_verbs import jobs, submit
from raysweep.cli.options import AddressOption, AsJson, SweepArgument, number, parse_share, parse_size
from raysweep.cli.result_verbs import compare, export, predict, report, show
from raysweep.cli.terminal import tell_terminal
from raysweep.cli.verbs import EXIT_CODES, Verbs
from raysweep.estimate.facts import with_facts
from raysweep.sweep_file import load_sweep

app = typer.Typer(
    cls=Verbs,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Find the fastest DeepSpeed configuration that fits: ZeRO stage, activation checkpointing, micro-batch.

    Start with: raysweep init, then raysweep plan SWEEP, then raysweep run SWEEP.
    """
    if version:
        typer.echo(f"raysweep {__version__}")
        raise typer.Exit


@app.command()
def plan(
    sweep: Annotated[str | None, typer.Argument(metavar="[SWEEP]", help="The sweep file (YAML).")] = None,
    params: Annotated[int | None, number("Parameters of the model, e.g. 7e9.")] = None,
    devices: Annotated[int | None, number("Devices that train together.")] = None,
    layers: Annotated[int | None, number("Transformer blocks; with --hidden and --seq-len for activations.")] = None,
    hidden: Annotated[int | None, number("Hidden size.")] = None,
    seq_len: Annotated[int | None, number("Sequence length.")] = None,
    micro_batch: Annotated[int | None, number("Samples of a device in one forward pass; 1 where not given.")] = None,
    checkpoint_interval: Annotated[int | None, number("Every which block is recomputed; 1 where not given.")] = None,
    device_memory: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", help="Of one device, e.g. 80GiB.")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Trace candidates in the real engine, without memory: exact, takes minutes.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Say what fits, what does not and why, before anything runs: no cluster, no GPU.

    With a sweep file: every candidate with its predicted memory, and what the sweep will cost.
    Without one: the memory arithmetic of a model.

    \b
    Examples:
        raysweep plan search_spaces/quickstart.yaml
        raysweep plan search_spaces/sharding_in_practice.yaml --trace
        raysweep plan --params 7e9 --devices 8 --layers 32 --hidden 4096 --seq-len 4096 --micro-batch 1
    """
    from raysweep.cli import plan as verb

    if sweep is not None:
        given = {"--params": params, "--devices": devices, "--layers": layers, "--hidden": hidden, "--seq-len": seq_len}
        for option, value in given.items():
            if value is not None:
                raise typer.BadParameter(
                    "goes without a sweep file, which describes the model itself", param_hint=option
                )
        if trace:
            from raysweep.cli import tracing
        tracer = tracing.trace_with_bar if trace else None
        verb.plan_file(sweep, device_memory_bytes=device_memory, as_json=json, tracer=tracer)
        return
    if trace:
        raise typer.BadParameter("needs a sweep file", param_hint="--trace")
    if params is not None and devices is None:
        raise typer.BadParameter("is needed with --params", param_hint="--devices")
    if params is None or devices is None:
        raise typer.BadParameter("give a sweep file, or --params and --devices", param_hint="SWEEP")
    verb.plan_sketch(
        parameters=params,
        devices=devices,
        layers=layers,
        hidden=hidden,
        sequence_length=seq_len,
        micro_batch_size_per_gpu=micro_batch or 1,
        activation_checkpoint_interval=1 if checkpoint_interval is None else checkpoint_interval,
        device_memory_bytes=device_memory,
        as_json=json,
    )


@app.command()
def memory(
    sweep: SweepArgument,
    candidate: Annotated[str, typer.Option(metavar="ID", help="As `raysweep plan` names it, e.g. s2-k1-b4-g2.")],
    json: AsJson = False,
) -> None:
    """Explain the memory of one candidate, phase by phase, by a fake engine trace of each rank.

    \b
    Example:
        raysweep memory search_spaces/quickstart.yaml --candidate s2-k1-b4-g2
    """
    from raysweep.cli import memory as verb

    verb.explain(sweep, candidate_id=candidate, as_json=json)


@app.command()
def run(
    sweep: SweepArgument,
    address: AddressOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an earlier run of this sweep ended.")] = False,
    retry: Annotated[str | None, typer.Option(metavar="failed", help="With --resume: launch failures again.")] = None,
    results: Annotated[str | None, typer.Option(help="Results folder or URI, in place of the file's.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove what an earlier run left.")] = False,
    searcher: Annotated[str | None, typer.Option(help="guided, grid, random or optuna, not the file's.")] = None,
    trials: Annotated[int | None, typer.Option(help="Launches at most, in place of the file's.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Length of the search, in place of the file's.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a large sweep.")] = False,
    worker_hours: Annotated[float | None, typer.Option(help="Worker-hours, in place of the file's.")] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Look the nodes over before the sweep.")] = True,
    serve: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve the report while it runs; to this machine only.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Predict memory by traces, in place of the file's.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Launch also what is predicted not to fit.")] = False,
    audit: Annotated[
        float, typer.Option(parser=parse_share, metavar="SHARE", help="Launch a share of the pruned, e.g. 5%.")
    ] = 0.0,
    calibration: Annotated[
        bool, typer.Option("--calibration/--no-calibration", help="Use what earlier sweeps showed of predicted memory.")
    ] = True,
) -> None:
    """Search, confirm the best in fresh worker groups, and export the winner.

    \b
    Examples:
        raysweep run search_spaces/quickstart.yaml
        raysweep run search_spaces/quickstart.yaml --resume --trials 20
        raysweep run search_spaces/quickstart.yaml --overwrite --searcher optuna --trials 8
    """
    # The file is read and its model counted before Ray is loaded, so that a slip in either is told at once.
    if retry not in (None, "failed") or (retry and not resume):
        raise typer.BadParameter("is `--resume --retry failed`", param_hint="--retry")
    options = {"method": searcher, "trials": trials, "seconds": seconds, "worker_hours": worker_hours}
    given = {key: value for key, value in options.items() if value is not None}
    model = "trace" if trace else None
    read = with_facts(load_sweep(sweep, search=given, results=results, memory_model=model), note=tell_terminal)
    from raysweep.cli import run as verb

    earlier: dict[str, bool] = {"resume": resume, "retry_failed": bool(retry), "overwrite": overwrite}
    verb.run(
        read,
        address=address,
        yes=yes,
        check=check,
        serve=serve,
        force=force,
        audit_share=audit,
        calibrates=calibration,
        **earlier,
    )


@app.command()
def check(
    sweep: SweepArgument,
    address: AddressOption = None,
) -> None:
    """Look over all that a sweep needs, and launch nothing: nodes, versions, memory, links, config, results.

    \b
    Example:
        raysweep check search_spaces/quickstart.yaml
    """
    read = with_facts(load_sweep(sweep), note=tell_terminal)
    from raysweep.cli import check as verb

    verb.check(read, address=address)


@app.command()
def init(
    output: Annotated[str, typer.Argument(help="The sweep file to write.")] = "sweep.yaml",
    model: Annotated[
        str | None,
        typer.Option(help="gpt, a config class of transformers, a config.json, or package.module:function."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers, one a GPU.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Global batch size, in samples.")] = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Sequence length.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or gpu; what is found here where not given.")] = None,
) -> None:
    """Write a first sweep file, with comments; at a terminal what no option gives is asked.

    \b
    Example:
        raysweep init mine.yaml --model GPT2Config --workers 8 --batch 256 --seq-len 1024
    """
    from raysweep.cli import init as verb

    if device not in (None, "cpu", "gpu"):
        raise typer.BadParameter(f"{device!r} is neither cpu nor gpu", param_hint="--device")
    verb.init(output, model=model, workers=workers, global_batch_size=batch, sequence_length=seq_len, device=device)


for _verb in (show, export, report, compare, predict, submit):
    app.command()(_verb)
app.add_typer(jobs, name="jobs")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; ends the process with its exit code."""
    # A job that is told to end gets the same clean stop as Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    app(args=arguments)


def _interrupt(signal_number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
