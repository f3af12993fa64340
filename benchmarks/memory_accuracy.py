"""Compares fake engine traces with real gloo ranks, in parts: all is predicted and hashed before anything is measured.

python benchmarks/memory_accuracy.py predict FOLDER                 # goes on where it was stopped
python benchmarks/memory_accuracy.py measure FOLDER --minutes 8     # a part of the runs; again until all are there
python benchmarks/memory_accuracy.py summary FOLDER                 # one JSON line
python benchmarks/memory_accuracy.py closed FOLDER                  # the closed form as it is now against the traces
python benchmarks/memory_accuracy.py whole [FOLDER] --count 12      # the first three in one go

`predict` takes `--worlds`, `--families` and `--count` (a sample of so many in each world). It writes
FOLDER/predictions.jsonl and prints its hash; `measure` notes that hash before its first run and refuses when it has
changed. Errors are relative to the largest phase of the fullest rank, in percent, without sign. The truth of a run is
the mode of the peaks of five steady steps.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from memory_configurations import FAMILIES, configurations
from real_ranks import weigh_for_real

from raysweep.allocations import AllocationLog
from raysweep.budget import MeasurementWindow
from raysweep.estimate.facts import facts_of
from raysweep.estimate.trace_server import TraceServer
from raysweep.memory import ZeroSettings, estimate_memory
from raysweep.model_facts import shape_of
from raysweep.serde import canonical_json, from_dict, to_dict
from raysweep.trace import RankTrace, TraceJob
from raysweep.trial import LaunchRequest
from raysweep.workload import gpt_shape


def predict(requests: Sequence[LaunchRequest], *, processes: int) -> list[list[RankTrace]]:
    """The trace of every rank of every request."""
    asked = [
        (number, TraceJob(request=_traced(request), rank=rank))
        for number, request in enumerate(requests)
        for rank in range(request.workload.world_size)
    ]
    found: list[list[RankTrace]] = [[] for _ in requests]
    with TraceServer(processes=processes, environment={}) as server:
        for index, trace in server.trace([job for _, job in asked]):
            found[asked[index][0]].append(trace)
    return [sorted(traces, key=lambda trace: trace.rank) for traces in found]


def _traced(request: LaunchRequest) -> LaunchRequest:
    return replace(request, window=MeasurementWindow(memory_pass_steps=3))


def closed_form_bytes(request: LaunchRequest) -> int:
    """The closed form's peak."""
    section = request.workload.model
    if section["kind"] == "gpt":
        shape = gpt_shape(**{key: section[key] for key in ("blocks", "hidden", "vocab_size", "positions", "tied")})
    else:
        facts = facts_of(section, note=lambda text: None, workload=request.workload)
        assert facts is not None, "torch is installed"
        shape = shape_of(facts)
    workload = replace(request.workload, shape=shape)
    return estimate_memory(request.candidate, workload, ZeroSettings.from_ds_config(request.ds_config)).peak_bytes


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _key(name: str, request: LaunchRequest) -> str:
    workload, zero = request.workload, request.ds_config["zero_optimization"]
    buckets = "small" if "reduce_bucket_size" in zero else "default"
    return f"{name} {request.candidate.candidate_id} {workload.precision} {buckets} n{workload.world_size}"


def add_predictions(
    folder: Path, chosen: Sequence[tuple[str, LaunchRequest]], *, processes: int, at_once: int = 8
) -> None:
    """Predict what has not been predicted yet, and write it down part by part."""
    file = folder / "predictions.jsonl"
    there = {line["key"] for line in _lines(file)}
    left = [(name, request) for name, request in chosen if _key(name, request) not in there]
    for first in range(0, len(left), at_once):
        part = left[first : first + at_once]
        found = predict([request for _, request in part], processes=processes)
        with file.open("a") as out:
            for (name, request), traces in zip(part, found, strict=True):
                ranks = [to_dict(replace(trace, allocations=AllocationLog())) for trace in traces]
                line = {"key": _key(name, request), "family": name, "request": to_dict(request), "ranks": ranks}
                print(canonical_json(line | {"closed_form_bytes": closed_form_bytes(request)}), file=out)
        print(f"predicted {len(there) + first + len(part)} of {len(chosen)}", file=sys.stderr, flush=True)
    print(f"predictions: {file}, SHA-256 {_hash(file)}", flush=True)


def _hash(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def add_measurements(folder: Path, *, minutes: float, at_once: int, oracles: int) -> None:
    """Run what has not been run yet, as many as the minutes allow.

    Raises:
        SystemExit: when the predictions are not those before the first run.
    """
    predictions, file, noted = folder / "predictions.jsonl", folder / "measured.jsonl", folder / "predictions.sha256"
    if not noted.exists():
        noted.write_text(_hash(predictions))
    if noted.read_text() != _hash(predictions):
        raise SystemExit(f"{predictions} has changed since the first run: {noted.read_text()} was noted")
    print(f"predictions: SHA-256 {noted.read_text()}", flush=True)
    there = {line["key"] for line in _lines(file)}
    ends_s = time.monotonic() + 60 * minutes
    for part in _parts([line for line in _lines(predictions) if line["key"] not in there], at_once):
        if time.monotonic() > ends_s:
            break
        requests = [from_dict(LaunchRequest, line["request"]) for line in part]
        with tempfile.TemporaryDirectory() as shared:
            reports = weigh_for_real(
                requests,
                world_size=requests[0].workload.world_size,
                folder=Path(shared),
                oracles=oracles,
            )
        with file.open("a") as out:
            for line, report in zip(part, reports, strict=True):
                print(json.dumps({"key": line["key"], "ranks": report}), file=out)
    print(f"measured {len(_lines(file))} of {len(_lines(predictions))}", flush=True)


def _parts(lines: Sequence[dict[str, Any]], at_once: int) -> Iterator[list[dict[str, Any]]]:
    """Parts of at most so many configurations of one world."""
    for world in sorted({line["request"]["workload"]["world_size"] for line in lines}):
        same = [line for line in lines if line["request"]["workload"]["world_size"] == world]
        for first in range(0, len(same), at_once):
            yield same[first : first + at_once]


def error_pct(traces: Sequence[RankTrace], reports: Sequence[Mapping[str, Any]]) -> float:
    """Predicted against measured peak of the fullest rank."""
    return 100 * abs(max(trace.peak_bytes for trace in traces) / truth_bytes(reports) - 1)


def truth_bytes(reports: Sequence[Mapping[str, Any]]) -> int:
    """The largest phase of the fullest rank."""
    return int(max(max(report["phases"].values()) for report in reports))


def oracle_error_pct(trace: RankTrace, report: Mapping[str, Any]) -> float:
    """Predicted peak above rest of rank 0 against the allocator's events."""
    return 100 * abs((trace.peak_bytes - trace.resting_bytes) / report["oracle"] - 1)


def summary(folder: Path) -> dict[str, Any]:
    """The figures of the JSON line."""
    measured = {line["key"]: line["ranks"] for line in _lines(folder / "measured.jsonl")}
    by_family: dict[str, list[float]] = defaultdict(list)
    closed_form: dict[str, list[tuple[float, str]]] = defaultdict(list)
    failures, oracle, phase_errors, off, collectives_off, everything = [], [], [], [], [], []
    for line in _lines(folder / "predictions.jsonl"):
        key, traces = line["key"], [from_dict(RankTrace, rank) for rank in line["ranks"]]
        everything += traces
        reports = measured.get(key, [])
        errors = [trace.error for trace in traces if trace.error] or [r["error"] for r in reports if "error" in r]
        if errors:
            failures.append(f"{key}: {errors[0]}")
        if errors or not reports:
            continue
        by_family[line["family"]].append(error_pct(traces, reports))
        closed_form[line["family"]].append((100 * (line["closed_form_bytes"] / truth_bytes(reports) - 1), key))
        for trace, report in zip(traces, reports, strict=True):
            for phase, size in report["phases"].items():
                phase_errors.append(100 * abs(trace.phase_peaks_bytes[phase] / size - 1))
                if trace.phase_peaks_bytes[phase] != size:
                    off.append(f"{key} rank {trace.rank} {phase}: {trace.phase_peaks_bytes[phase]} against {size}")
            called = {each.name: [each.count, each.size_bytes] for each in trace.collectives}
            if called != {name: list(counted) for name, counted in report["collectives"].items()}:
                collectives_off.append(f"{key} rank {trace.rank}")
            if trace.rank == 0 and report.get("oracle"):
                oracle.append(oracle_error_pct(trace, report))
    every = [error for errors in by_family.values() for error in errors]
    return {
        "n": len(every),
        "max_error_pct": round(max(every), 4),
        "mean_error_pct": round(sum(every) / len(every), 4),
        # Traces are made as they are: a correction by a tiny real step was not needed in any of them.
        "uncorrected_max_error_pct": round(max(every), 4),
        "phases": len(phase_errors),
        "phases_equal": len(phase_errors) - len(off),
        "phase_max_error_pct": round(max(phase_errors), 4),
        "families": {name: _spread(errors) for name, errors in by_family.items()},
        "oracle_n": len(oracle),
        "oracle_max_error_pct": round(max(oracle), 4) if oracle else None,
        **_closed_form_figures(closed_form),
        "ranks_with_other_collectives": collectives_off,
        "cpu_s_a_trace": round(sum(trace.cpu_s for trace in everything) / len(everything), 1),
        "largest_resident_bytes": max(trace.resident_bytes for trace in everything),
        "phases_off": off,
        "failures": failures,
    }


def closed(folder: Path) -> dict[str, Any]:
    """The closed form, computed anew, against what was traced: a fuller rank counts, and the sign is kept."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for line in _lines(folder / "predictions.jsonl"):
        traces = [from_dict(RankTrace, rank) for rank in line["ranks"]]
        if not any(trace.error for trace in traces):
            peak_bytes = max(trace.peak_bytes for trace in traces)
            error = 100 * (closed_form_bytes(from_dict(LaunchRequest, line["request"])) / peak_bytes - 1)
            found[line["family"]].append((error, line["key"]))
    return {"against": "traces", **_closed_form_figures(found)}


def _closed_form_figures(found: Mapping[str, Sequence[tuple[float, str]]]) -> dict[str, Any]:
    """Signed errors in percent with their configurations, by family -> the figures of the closed form."""
    every = [each for errors in found.values() for each in errors]
    worst_error, worst = max(every, key=lambda each: abs(each[0]))
    return {
        "closed_form_n": len(every),
        "closed_form_median_error_pct": round(statistics.median(abs(error) for error, _ in every), 4),
        "closed_form_max_error_pct": round(abs(worst_error), 2),
        "closed_form_worst": f"{worst}: {worst_error:+.2f} %",
        "closed_form_lowest_pct": round(min(error for error, _ in every), 2),
        "closed_form_highest_pct": round(max(error for error, _ in every), 2),
        "closed_form": {name: _spread([abs(error) for error, _ in errors]) for name, errors in found.items()},
    }


def _spread(errors: Sequence[float]) -> dict[str, Any]:
    return {
        "n": len(errors),
        "max_error_pct": round(max(errors), 4),
        "mean_error_pct": round(sum(errors) / len(errors), 4),
        "median_error_pct": round(statistics.median(errors), 4),
    }


def _chosen(given: argparse.Namespace) -> list[tuple[str, LaunchRequest]]:
    chosen = []
    for world in given.worlds:
        of_world = configurations([world], given.families)
        count = len(of_world) if given.count is None else min(given.count, len(of_world))
        chosen += random.Random(world).sample(of_world, count)
    return chosen


def run_part(part: str, folder: Path, given: argparse.Namespace) -> None:
    """One part, in a folder that is there."""
    if part in ("predict", "whole"):
        add_predictions(folder, _chosen(given), processes=given.processes)
    if part in ("measure", "whole"):
        minutes = math.inf if part == "whole" else given.minutes
        add_measurements(folder, minutes=minutes, at_once=given.at_once, oracles=given.oracles)
    if part in ("summary", "whole"):
        print(json.dumps(summary(folder)))
    if part == "closed":
        print(json.dumps(closed(folder)))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["predict", "measure", "summary", "closed", "whole"])
    parser.add_argument("folder", type=Path, nargs="?", help="of a run in parts; `whole` does without")
    parser.add_argument("--count", type=int, default=None, help="configurations of each world, drawn at random")
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=8.0, help="no part of the runs begins after so many")
    parser.add_argument("--at-once", type=int, default=16, help="runs of one part")
    parser.add_argument("--oracles", type=int, default=3, help="runs of a part with the allocator's events")
    given = parser.parse_args()
    if given.folder is None and given.part != "whole":
        parser.error(f"{given.part} needs the folder of the run")
    with tempfile.TemporaryDirectory() as own:
        folder = given.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        run_part(given.part, folder, given)


if __name__ == "__main__":
    main()
