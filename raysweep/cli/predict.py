"""`raysweep predict`: what a sweep's candidates would do at another number of workers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import typer

from raysweep.cli.tracing import trace_with_bar
from raysweep.memory import MemoryEstimate
from raysweep.results.journal import JournalContents, read_journal
from raysweep.results.paths import ResultsPaths
from raysweep.search.predict import Prediction, Scale, candidates_at, predict, workload_at
from raysweep.serde import to_dict
from raysweep.sweep_file import load_sweep
from raysweep.tables import aligned
from raysweep.units import format_bytes, parse_bytes

SHOWN = 10
"""Rows of the table, where --json gives all."""
PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def parse_link(text: str) -> float:
    """Bytes a second of `25GB/s`, `200Gbit/s` or `200Gbps`: a small b is a bit.

    Raises:
        typer.BadParameter: when it is neither.
    """
    amount = re.sub(r"(/s|ps)$", "", text.strip())
    bits = re.fullmatch(r"([\d.]+)\s*([kMG]?)b(it)?", amount)
    try:
        rate = float(bits[1]) * PREFIXES[bits[2]] / 8 if bits else float(parse_bytes(amount))
    except ValueError:
        rate = 0.0
    if rate <= 0:
        raise typer.BadParameter(f"{text!r} is no rate of a link; write for example 25GB/s or 200Gbit/s")
    return rate


def show(
    results: str, *, world_size: int, link: str | None, global_batch_size: int | None, trace: bool, as_json: bool
) -> None:
    """Print the predictions, the fastest first.

    Raises:
        RaysweepError: when there is no sweep, nothing was measured, or the batch cannot be shared.
    """
    rate = None if link is None else parse_link(link)
    scale = Scale(world_size=world_size, global_batch_size=global_batch_size, link_bytes_per_s=rate)
    contents = read_journal(ResultsPaths(results).journal)
    notes: tuple[str, ...] = ()
    traced: dict[str, MemoryEstimate] = {}
    if trace:
        traced, notes = _traced(results, contents, scale)
    predictions = predict(contents, scale, traced=traced)
    if as_json:
        typer.echo(json.dumps([to_dict(each) for each in predictions], indent=2))
        return
    typer.echo(_rendered(contents, scale, predictions))
    for note in notes:
        typer.echo(f"Note: {note}")


def _traced(results: str, contents: JournalContents, scale: Scale) -> tuple[dict[str, MemoryEstimate], tuple[str, ...]]:
    sweep = load_sweep(ResultsPaths(results).sweep_file)
    start = contents.sweep
    sweep = replace(sweep, workload=workload_at(start, scale), base_ds_config=start.base_ds_config)
    traces = trace_with_bar(sweep, candidates_at(start, scale))
    return dict(traces.estimates), traces.notes


def _rendered(contents: JournalContents, scale: Scale, predictions: Sequence[Prediction]) -> str:
    start = contents.sweep
    measured = {each.candidate_id for each in contents.measurements if each.figures}
    sizes = [row.world_size for row in start.plan_rows if row.candidate.candidate_id in measured]
    of_size = "These are predictions all the same." if scale.world_size in sizes else "Nothing was run at this size."
    over = f", links of {scale.link_bytes_per_s / 1e9:.3g} GB/s" if scale.link_bytes_per_s else ""
    header = (
        "candidate", "samples/s, predicted", "band (two standard deviations)", "efficiency", "peak, predicted", "fits"
    )  # fmt: skip
    return "\n".join(
        [
            f"PREDICTION for {scale.world_size} workers{over}, from {len(measured)} candidates measured at "
            f"{' and '.join(map(str, sorted(set(sizes))))}. {of_size}",
            "",
            aligned(header, [_cells(each) for each in predictions[:SHOWN]]),
            *([f"... and {len(predictions) - SHOWN} more (--json)"] if len(predictions) > SHOWN else []),
            "",
            f"efficiency: samples/s a worker, over the fastest measured at {max(sizes)} workers.",
        ]
    )


def _cells(each: Prediction) -> tuple[str, ...]:
    return (
        each.candidate.candidate_id,
        f"{each.samples_per_s:.2f}",
        f"{each.samples_per_s_low:.2f} to {each.samples_per_s_high:.2f}",
        f"{each.efficiency:.0%}",
        format_bytes(each.memory.peak_bytes) if each.memory else "unknown",
        {True: "yes", False: "no", None: "unknown"}[each.fits],
    )
