"""What careful people do by hand against raysweep, on four workloads; one JSON line.

python benchmarks/hand_tuned.py

By hand: the first ZeRO stage that fits at micro-batch 1 (with every block checkpointed where none fits without), then
the micro-batch doubled until it is out of memory; the last that fitted is taken. Both answers are then measured in
turn in one worker group.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from plain_runs import noise_pct

from raysweep.api import make_plan, run_sweep
from raysweep.candidate import Candidate
from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.cluster import ray_session
from raysweep.launch.warm_group import GroupSpec, WarmGroup
from raysweep.results.interval import paired_log_ratio
from raysweep.search.requests import RequestMaker
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import TrialStatus
from raysweep.workload import accumulation_for

ROUNDS = 5
SMALL_BUCKETS = {
    "reduce_bucket_size": 1_000_000,
    "allgather_bucket_size": 1_000_000,
    "stage3_prefetch_bucket_size": 1_000_000,
    "stage3_param_persistence_threshold": 1000,
}
COMMON: dict[str, Any] = {
    "data": {"kind": "synthetic"},
    "workers": {"count": 2, "resources_per_worker": {"CPU": 1}},
    "global_batch_size": 16,
    "deepspeed": {"zero_optimization": SMALL_BUCKETS},
    "space": {
        "zero_stage": [0, 1, 2, 3],
        "activation_checkpoint_interval": [0, 1, 2],
        "micro_batch_size_per_gpu": [1, 2, 4, 8],
    },
    "search": {"method": "guided", "trials": 12, "confirm": False},
    "measure": {"measured_seconds": 1},
    "environment": {"OMP_NUM_THREADS": 1},
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "tight": {"blocks": 4, "hidden": 256, "heads": 4, "sequence_length": 128, "memory_budget": "56MiB"},
    "roomy": {"blocks": 4, "hidden": 128, "heads": 4, "sequence_length": 64, "memory_budget": "1GiB"},
    "wide": {"blocks": 2, "hidden": 384, "heads": 6, "sequence_length": 64, "memory_budget": "72MiB"},
    "long": {"blocks": 6, "hidden": 128, "heads": 4, "sequence_length": 512, "memory_budget": "64MiB"},
}


@dataclass(kw_only=True)
class _Hand:
    """The walk by hand, one launch after the other."""

    sweep: Sweep
    client: BrokerClient
    launched: list[str] = field(default_factory=list)

    def fits(self, candidate: Candidate) -> bool:
        self.launched.append(candidate.candidate_id)
        return measure(self.sweep, self.client, candidate) is not None

    def walk(self) -> Candidate:
        """The candidate that is taken.

        Raises:
            RuntimeError: when nothing fits at micro-batch 1.
        """
        starts = (make(self.sweep, stage, interval, 1) for interval in (0, 1) for stage in (0, 1, 2, 3))
        best = next((start for start in starts if self.fits(start)), None)
        if best is None:
            raise RuntimeError("nothing fits at micro-batch 1")
        for micro_batch in self.sweep.space.micro_batch_size_per_gpu[1:]:
            larger = make(self.sweep, best.zero_stage, best.activation_checkpoint_interval, micro_batch)
            if not self.fits(larger):
                break
            best = larger
        return best


def make(sweep: Sweep, stage: int, interval: int, micro_batch: int) -> Candidate:
    """A candidate of the sweep's global batch."""
    workload = sweep.workload
    accumulation = accumulation_for(workload.global_batch_size or 0, micro_batch, workload.world_size)
    return Candidate(
        zero_stage=stage,
        activation_checkpoint_interval=interval,
        micro_batch_size_per_gpu=micro_batch,
        gradient_accumulation_steps=accumulation or 1,
    )


def measure(sweep: Sweep, client: BrokerClient, candidate: Candidate) -> float | None:
    """Samples/s; None where it does not fit."""
    requests = RequestMaker(sweep=sweep, memory_budget_bytes=sweep.memory_budget_bytes).make_all([candidate])
    measured = client.launch(requests[candidate.candidate_id])
    if measured.status not in (TrialStatus.COMPLETED, TrialStatus.OOM):
        raise RuntimeError(f"{candidate.candidate_id}: {measured.reason}")
    return measured.figures.samples_per_s if measured.figures else None


def compare(name: str, folder: Path) -> dict[str, Any]:
    """One workload: both answers, and raysweep's rate over the other, in turn."""
    chosen = dict(WORKLOADS[name])
    model = {"kind": "gpt", "vocab_size": 256, **{key: chosen.pop(key) for key in ("blocks", "hidden", "heads")}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**COMMON, **chosen, "name": name, "model": model, "results": str(folder / name)}))
    sweep = load_sweep(path)
    launches: list[str] = []
    result = run_sweep(sweep, on_trial=lambda measurement: launches.append(measurement.candidate_id))
    winner = next(
        row.candidate for row in make_plan(sweep).rows if row.candidate.candidate_id == result.selection.winner
    )
    spec = GroupSpec.of_sweep(sweep, sweep_id=f"hand-{uuid.uuid4().hex[:8]}", log_folder=str(folder))
    with ray_session(address=None, environment=sweep.file.environment), WarmGroup(spec) as client:
        hand = _Hand(sweep=sweep, client=client)
        taken = hand.walk()
        rates = [(measure(sweep, client, winner), measure(sweep, client, taken)) for _ in range(ROUNDS)]
    ours, theirs = ([rate for rate in side if rate is not None] for side in zip(*rates, strict=True))
    ratio = paired_log_ratio(ours, theirs).exp()
    return {
        "raysweep": winner.candidate_id,
        "by_hand": taken.candidate_id,
        "throughput_ratio": round(ratio.centre, 3),
        "throughput_ratio_low": round(ratio.low, 3),
        "throughput_ratio_high": round(ratio.high, 3),
        "trials": len(launches),
        "trials_by_hand": len(hand.launched),
        "noise_pct": round(noise_pct([ours, theirs]), 1),
    }


def main() -> None:
    """Print one JSON line."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        workloads = {name: compare(name, Path(folder)) for name in WORKLOADS}
    middle = statistics.geometric_mean(each["throughput_ratio"] for each in workloads.values())
    print(json.dumps({"benchmark": "hand_tuned", "throughput_ratio": round(middle, 3), "workloads": workloads}))


if __name__ == "__main__":
    main()
