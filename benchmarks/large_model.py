"""Traces a Llama of 7 billion parameters on 8 ranks beside the closed form and the textbook; prints one JSON line.

python benchmarks/large_model.py [--processes 2] [--stages 0 1 2 3] [--intervals 0 1]

No weight is allocated and nothing is computed. With a sequence of 4096 tokens and a micro-batch of 1; a line for each
configuration goes to standard error as it is known.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from typing import Any

from memory_configurations import HF_EMPTY

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.estimate.facts import facts_of
from raysweep.estimate.trace_server import TraceServer
from raysweep.memory import ZeroSettings, estimate_memory
from raysweep.model_facts import shape_of
from raysweep.trace import RankTrace, TraceJob
from raysweep.trial import LaunchRequest
from raysweep.units import GIB
from raysweep.workload import Workload
from raysweep.zero import activation_bytes, model_state_bytes

WORLD_SIZE, SEQUENCE = 8, 4096
OVERRIDES = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": SEQUENCE,
}
MODEL = {"kind": "hf", **HF_EMPTY, "config_class": "LlamaConfig", "overrides": OVERRIDES}


def request_of(stage: int, interval: int) -> LaunchRequest:
    """A candidate of the default buckets in bf16, as it would be launched on the CPU."""
    workload = Workload(
        model=MODEL,
        shape=None,
        data={"kind": "synthetic"},
        sequence_length=SEQUENCE,
        precision="bf16",
        optimizer={},
        world_size=WORLD_SIZE,
    )
    facts = facts_of(MODEL, note=lambda text: None, workload=workload)
    assert facts is not None, "torch is installed"
    return LaunchRequest(
        candidate=Candidate(zero_stage=stage, activation_checkpoint_interval=interval, micro_batch_size_per_gpu=1),
        workload=replace(workload, shape=shape_of(facts)),
        ds_config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
            "steps_per_print": 10**9,
        },
        window=MeasurementWindow(memory_pass_steps=3 if stage == 3 else 2),
    )


def described(request: LaunchRequest, trace: RankTrace) -> dict[str, Any]:
    """The three predictions in GiB, and what the trace cost."""
    shape = request.workload.shape
    assert shape is not None
    candidate = request.candidate
    closed = estimate_memory(candidate, request.workload, ZeroSettings.from_ds_config(request.ds_config))
    textbook = model_state_bytes(candidate.zero_stage, shape.parameters, WORLD_SIZE) + activation_bytes(
        layers=shape.blocks,
        hidden=shape.hidden,
        sequence_length=SEQUENCE,
        micro_batch=1,
        interval=candidate.activation_checkpoint_interval,
    )
    return {
        "candidate": candidate.candidate_id,
        "trace_gib": round(trace.peak_bytes / GIB, 2),
        "closed_form_gib": round(closed.peak_bytes / GIB, 2),
        "textbook_gib": round(textbook / GIB, 2),
        "trace_s": round(trace.trace_s, 1),
        "cpu_s": round(trace.cpu_s, 1),
        "resident_gib": round(trace.resident_bytes / GIB, 2),
        "ranks_of_a_kind": list(trace.ranks_of_a_kind),
        "error": trace.error,
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--intervals", type=int, nargs="+", default=[0, 1])
    given = parser.parse_args()
    requests = [request_of(stage, interval) for stage, interval in itertools.product(given.stages, given.intervals)]
    began_s = time.perf_counter()
    rows: dict[int, dict[str, Any]] = {}
    with TraceServer(processes=given.processes, environment={}) as server:
        for index, trace in server.trace([TraceJob(request=request, rank=0) for request in requests]):
            rows[index] = described(requests[index], trace)
            print(json.dumps(rows[index]), file=sys.stderr, flush=True)
    configurations = [rows[index] for index in sorted(rows)]
    print(
        json.dumps(
            {
                "parameters": requests[0].workload.shape.parameters,  # type: ignore[union-attr]
                "wall_s": round(time.perf_counter() - began_s, 1),
                "cpu_s": round(sum(row["cpu_s"] for row in configurations), 1),
                "largest_resident_gib": max(row["resident_gib"] for row in configurations),
                "configurations": configurations,
            }
        )
    )


if __name__ == "__main__":
    main()
