"""The same sweep over two nodes of one machine, on their fast link and on one of 200 Mbit/s; one JSON line.

sudo .venv/bin/python benchmarks/slow_link.py [--megabit 200]

On a slow link it pays to send less for each sample, by micro-batches that fit only with checkpointing. Beside each
winner stands what stage 3 with every block checkpointed gives on that link: the best of its micro-batches, searched by
itself. Needs root, as `cluster/local` does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import local_cluster
import yaml
from hand_tuned import SMALL_BUCKETS
from local_nodes import LocalCluster

from raysweep.cli.report import load_facts
from raysweep.page.facts import ReportFacts
from raysweep.results.records import TrialRecord

ROOT = Path(__file__).parents[1]
SPACE = {
    "zero_stage": [0, 1, 2, 3],
    "activation_checkpoint_interval": [0, 1, 2],
    "micro_batch_size_per_gpu": [1, 2, 4, 8, 16],
    "gradient_accumulation_steps": [1],
}
REACHED_FOR = {**SPACE, "zero_stage": [3], "activation_checkpoint_interval": [1]}
"""What many begin with: stage 3, every block checkpointed."""
SWEEP: dict[str, Any] = {
    "model": {"kind": "gpt", "blocks": 4, "hidden": 256, "heads": 4, "vocab_size": 256},
    "data": {"kind": "synthetic"},
    "sequence_length": 128,
    "workers": {"count": 2, "resources_per_worker": {"CPU": 1}, "placement": "STRICT_SPREAD"},
    "global_batch_size": "free",
    "memory_budget": "56MiB",
    "deepspeed": {"zero_optimization": SMALL_BUCKETS},
    "measure": {"measured_seconds": 2},
    "environment": {"OMP_NUM_THREADS": 1},
}


def sweep(cluster: LocalCluster, name: str, space: Mapping[str, Any], search: Mapping[str, Any]) -> ReportFacts:
    """What a sweep over the two nodes found.

    Raises:
        RuntimeError: with the end of what it printed, when it has no winner.
    """
    head = cluster.nodes[0]
    plain = {**SWEEP, "name": name, "space": space, "search": search, "cluster": {"address": cluster.address}}
    head.tmp("work", f"{name}.yaml").write_text(yaml.safe_dump(plain))
    command = [sys.executable, "-m", "raysweep.cli.main", "run", f"{name}.yaml"]
    print(f"sweeping {name}", file=sys.stderr, flush=True)
    done = head.run(*command, environment={"PYTHONPATH": str(ROOT)}, timeout_s=1200, check=False)
    facts = load_facts(str(head.tmp("work", "results", name)))
    if facts.winner is None:
        raise RuntimeError(f"{name} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    return facts


def told(facts: ReportFacts) -> dict[str, Any]:
    """The winner, its confirmed rate, and what each rank sends for a sample of the global batch."""
    winner = facts.winner
    assert winner is not None
    return {
        "winner": winner.candidate_id,
        "samples_per_s": round(rate(winner), 2),
        "sent_bytes_per_sample": round((winner.estimated_sent_bytes_per_step or 0) / winner.global_batch_size),
        "launched": len(facts.search_launches),
    }


def rate(record: TrialRecord) -> float:
    """Samples/s, of the confirmation where there was one."""
    found = record.confirmed_samples_per_s or record.samples_per_s
    assert found is not None, record
    return found


def compare(cluster: LocalCluster, link: str) -> dict[str, Any]:
    """The winner on a link beside stage 3 with every block checkpointed."""
    found = told(sweep(cluster, link, SPACE, {"method": "guided", "trials": 12}))
    reached_for = told(sweep(cluster, f"{link}_default", REACHED_FOR, {"method": "grid"}))
    return {
        **found,
        "stage_3_checkpointed": reached_for["winner"],
        "stage_3_checkpointed_samples_per_s": reached_for["samples_per_s"],
        "gain": round(found["samples_per_s"] / reached_for["samples_per_s"], 3),
    }


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabit", type=float, default=200, help="of the slow link, each way")
    megabit = parser.parse_args().megabit
    try:
        with local_cluster.running("bytes", [1, 1]) as cluster:
            fast = compare(cluster, "fast")
            cluster.limit_rate(1, megabit)
            slow = compare(cluster, "slow")
    except local_cluster.CannotBuild as error:
        sys.exit(f"slow_link: {error}")
    ratio = slow["sent_bytes_per_sample"] / fast["sent_bytes_per_sample"]
    line = {"benchmark": "slow_link", "megabit": megabit, "sent_ratio": round(ratio, 3), "fast": fast, "slow": slow}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
