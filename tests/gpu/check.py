"""Compares predictions with one GPU: allocated, reserved and used bytes, out of memory, warm against fresh processes.

python tests/gpu/check.py            # on a machine with a GPU: 8 minutes at most; prints one JSON object
python tests/gpu/check.py --cpu      # the same steps on a small model on the CPU, to try the script

One process is the only rank; neither Ray nor a compiler is needed, and beside raysweep and what it requires only torch
and DeepSpeed. What did not fit in the time is under `not_shown`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysweep.allocations import without
from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.cuda_allocator import replay_on_cuda
from raysweep.estimate.trace_server import TraceServer
from raysweep.memory import ZeroSettings, estimate_memory
from raysweep.serde import from_dict, to_dict
from raysweep.trace import RankTrace, TraceJob
from raysweep.trial import LaunchRequest, Measurement, TrialStatus
from raysweep.workload import Workload, gpt_shape

LARGE = {"blocks": 12, "hidden": 1024, "vocab_size": 32768, "positions": 1024}
SMALL = {"blocks": 4, "hidden": 64, "vocab_size": 512, "positions": 32}
WINDOW = MeasurementWindow(warmup_min_steps=2, warmup_max_steps=3, measured_steps=3, measured_s=0.0)
COMPARED = 12
WARM = 20


def requests_of(*, device: str) -> list[LaunchRequest]:
    """The candidates: stages 0 to 3, three intervals, two micro-batches; no budget."""
    size = LARGE if device == "cuda" else SMALL
    made = []
    for micro_batch, interval, stage in itertools.product((4, 8), (0, 1, 2), (0, 1, 2, 3)):
        candidate = Candidate(
            zero_stage=stage, activation_checkpoint_interval=interval, micro_batch_size_per_gpu=micro_batch
        )
        workload = Workload(
            model={"kind": "gpt", "heads": 4 if device == "cpu" else 16, "tied": True, **size},
            shape=gpt_shape(**size, tied=True),
            data={"kind": "synthetic"},
            sequence_length=size["positions"],
            precision="bf16",
            optimizer={},
            world_size=1,
            device=device,
        )
        elements = 10_000_000 if device == "cuda" else 100_000
        zero = {"stage": stage, "reduce_bucket_size": elements, "allgather_bucket_size": elements}
        config = {
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": 1,
            "bf16": {"enabled": True},
            # torch's own Adam: DeepSpeed's would be compiled first.
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_optimization": zero | ({"stage3_prefetch_bucket_size": elements} if stage == 3 else {}),
            "steps_per_print": 10**9,
        }
        made.append(LaunchRequest(candidate=candidate, workload=workload, ds_config=config, window=WINDOW))
    return made


def predictions(requests: Sequence[LaunchRequest], *, processes: int) -> list[dict[str, Any]]:
    """Of each request the bytes by closed form and by trace, made on the CPU in processes that see no GPU."""
    jobs = [TraceJob(request=replace(each, window=MeasurementWindow(memory_pass_steps=3)), rank=0) for each in requests]
    traces: dict[int, RankTrace] = {}
    with TraceServer(processes=processes, environment={"CUDA_VISIBLE_DEVICES": ""}) as server:
        traces.update(server.trace(jobs))
    return [_prediction(request, traces[index]) for index, request in enumerate(requests)]


def _prediction(request: LaunchRequest, trace: RankTrace) -> dict[str, Any]:
    settings = ZeroSettings.from_ds_config(request.ds_config)
    closed = estimate_memory(request.candidate, request.workload, settings)
    replayed = replay_on_cuda(without(trace.allocations, ()), world_size=1)
    return {
        "closed_form_bytes": closed.peak_bytes,
        "trace_bytes": trace.peak_bytes,
        "trace_error": trace.error,
        "replayed_allocated_bytes": replayed.allocated_bytes,
        "replayed_reserved_bytes": replayed.reserved_bytes,
        "replayed_used_bytes": replayed.used_bytes,
    }


def shown(measurement: Measurement) -> dict[str, Any]:
    """What a launch showed."""
    figures = measurement.figures
    plain = {"status": str(measurement.status), "reason": measurement.reason[:300]}
    if figures is None:
        return plain
    names = (
        "peak_memory_bytes",
        "reserved_bytes",
        "device_used_bytes",
        "build_peak_bytes",
        "left_behind_bytes",
        "first_loss",
        "step_time_s_median",
        "device",
    )
    return plain | {name: getattr(figures, name) for name in names}


def compared(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, float]:
    """Errors in percent with their sign: predicted over measured less 1."""
    pairs = {
        "closed_form_pct": ("closed_form_bytes", "peak_memory_bytes"),
        "trace_pct": ("trace_bytes", "peak_memory_bytes"),
        "allocated_pct": ("replayed_allocated_bytes", "peak_memory_bytes"),
        "reserved_pct": ("replayed_reserved_bytes", "reserved_bytes"),
        "used_pct": ("replayed_used_bytes", "device_used_bytes"),
    }
    return {
        name: round(100 * (predicted[ours] / measured[theirs] - 1), 3)
        for name, (ours, theirs) in pairs.items()
        if measured.get(theirs) and predicted[ours]
    }


def out_of_memory(launcher: Any, request: LaunchRequest, *, peak_bytes: int) -> dict[str, Any]:
    """A candidate with too small a budget, and the same one without: does it end as OOM, and is it as before then."""
    capped = launcher.launch(replace(request, memory_budget_bytes=peak_bytes // 2, on_budget="raise"))
    again = shown(launcher.launch(request))
    return {
        "is_oom": capped.status is TrialStatus.OOM,
        "reason": capped.reason[:300],
        "recovers": again.get("peak_memory_bytes") == peak_bytes,
        "peak_after_bytes": again.get("peak_memory_bytes"),
    }


def fresh(request: LaunchRequest) -> dict[str, Any]:
    """The same candidate in a process of its own."""
    process = subprocess.run(
        [sys.executable, __file__, "--one"],
        input=json.dumps(to_dict(request)),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    lines = process.stdout.strip().splitlines()
    if not lines:
        return {"status": "died", "reason": process.stderr[-300:]}
    return dict(json.loads(lines[-1]))


def check(*, device: str, minutes: float, count: int | None) -> dict[str, Any]:
    """All of it, as far as the minutes reach."""
    ends_s = time.monotonic() + 60 * minutes
    requests = requests_of(device=device)[: count or WARM]
    predicted = predictions(requests[:COMPARED], processes=min(4, os.cpu_count() or 1))
    from raysweep.launch.in_process import InProcessLauncher

    launcher = InProcessLauncher()
    warm: list[dict[str, Any]] = []
    for request in requests:
        if time.monotonic() < ends_s:
            warm.append(shown(launcher.launch(request)))
    report: dict[str, Any] = {
        "device": next((each["device"] for each in warm if "device" in each), device),
        "candidates": [
            {"candidate_id": request.candidate.candidate_id, **ours, **theirs, "error": compared(ours, theirs)}
            for request, ours, theirs in zip(requests, predicted, warm, strict=False)
        ],
    }
    names = ("closed_form_pct", "trace_pct", "allocated_pct", "reserved_pct", "used_pct")
    errors = {name: [abs(c["error"][name]) for c in report["candidates"] if name in c["error"]] for name in names}
    report["max_error_pct"] = {name: max(values) for name, values in errors.items() if values}
    peak_bytes = warm[0].get("peak_memory_bytes")
    if peak_bytes:
        report["out_of_memory"] = out_of_memory(launcher, requests[0], peak_bytes=peak_bytes)
    pairs = []
    for request, ours in zip(requests, warm, strict=False):
        if time.monotonic() < ends_s:
            theirs = fresh(request)
            same = all(ours.get(name) == theirs.get(name) for name in ("status", "peak_memory_bytes", "first_loss"))
            pairs.append({"candidate_id": request.candidate.candidate_id, "same": same, "warm": ours, "fresh": theirs})
    report["warm_is_fresh"] = {
        "n": len(pairs),
        "same": sum(pair["same"] for pair in pairs),
        "others": [pair for pair in pairs if not pair["same"]],
    }
    report["not_shown"] = [
        *(["a GPU"] if device == "cpu" else []),
        *([f"{len(requests) - len(warm)} warm candidates"] if len(warm) < len(requests) else []),
        *([f"{len(warm) - len(pairs)} fresh processes"] if len(pairs) < len(warm) else []),
        "more than one rank, so no NCCL",
    ]
    return report


def run_one() -> None:
    """Launch the request on standard input, and print what it showed."""
    from raysweep.launch.in_process import InProcessLauncher

    request = from_dict(LaunchRequest, json.loads(sys.stdin.read()))
    print(json.dumps(shown(InProcessLauncher().launch(request))))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--count", type=int, default=None, help=f"candidates, {WARM} by default")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one()
        return
    print(json.dumps(check(device="cpu" if given.cpu else "cuda", minutes=given.minutes, count=given.count), indent=1))


if __name__ == "__main__":
    main()
