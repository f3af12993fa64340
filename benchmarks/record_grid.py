"""Measures a whole grid again and again, in interleaved rounds, and keeps every launch in a Parquet file.

python benchmarks/record_grid.py benchmarks/grids/NAME.yaml [--whole-rounds 4] [--most-rounds 15] [--output FILE]
    [--minutes 8]

Each round starts in a fresh warm group and launches the candidates in an order of its own. The first rounds are of the
whole grid. Those after them are of the best and of the candidates with a launch within 10 % of it, until the 95 %
interval of each one's paired difference to the best is at most +-2 %, or it has had --most-rounds. The file is written
after every launch, with the sweep file in its metadata; called again with the same sweep, it goes on with the launches
that are missing: after `--minutes` it stops. A round that was stopped goes on in another group. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from grid_data import (
    BEGUN_KEY,
    COLUMNS,
    SWEEP_KEY,
    Rounds,
    at_one_pace,
    noise_pct,
    rounds_of,
    to_launch_again,
    unsettled,
    whole_rounds,
)

from raysweep.launch.attempts import run_candidate
from raysweep.launch.broker_client import BrokerClient
from raysweep.launch.cluster import check_capacity, ray_session
from raysweep.launch.warm_group import GroupSpec, WarmGroup
from raysweep.plan import make_plan
from raysweep.search.requests import RequestMaker
from raysweep.serde import to_dict
from raysweep.sweep_file import Sweep, load_sweep
from raysweep.trial import LaunchRequest, Measurement, TrialStatus

Row = dict[str, Any]


class Recording:
    """The rows of a grid so far, and their file."""

    def __init__(self, sweep: Sweep, output: Path) -> None:
        self._sweep = sweep
        self._output = output
        self.rows: list[Row] = []
        self._begun: dict[str, str] = {}
        if output.exists():
            table = pq.read_table(output)
            if table.schema.metadata[SWEEP_KEY].decode() != sweep.text:
                sys.exit(f"{output}: was recorded from another sweep file; name another with --output")
            self.rows = table.to_pylist()
            self._begun = json.loads(table.schema.metadata[BEGUN_KEY].decode())

    @property
    def rounds_done(self) -> int:
        """Rounds that are in the file."""
        return self.last_round - 1 if self.missing_of_last() else self.last_round

    @property
    def last_round(self) -> int:
        """The round of the last launch; 0 before the first."""
        return max((row["round"] for row in self.rows), default=0)

    def missing_of_last(self) -> list[str]:
        """Whom the last round has not launched yet, of those that it was begun with."""
        rows = [row for row in self.rows if row["round"] == self.last_round]
        begun_with = json.loads(self._begun.get(str(self.last_round), "[]"))
        return [each for each in begun_with if each not in {row["candidate_id"] for row in rows}]

    @property
    def rounds(self) -> Rounds:
        """The step times of the rounds so far."""
        return rounds_of(self.rows)

    def launch_round(
        self, number: int, requests: Mapping[str, LaunchRequest], client: BrokerClient, *, until_s: float
    ) -> bool:
        """Launch each candidate once, in an order of the round's own, a row each; False where time ran out before."""
        order = list(requests)
        random.Random(number).shuffle(order)
        self._begun.setdefault(str(number), json.dumps(order))
        for place, candidate_id in enumerate(order, start=1):
            if time.monotonic() >= until_s:
                return False
            standing = run_candidate(client, requests[candidate_id])[-1]
            self.rows.append(self._row(requests[candidate_id], standing, number))
            rate = f"{standing.figures.samples_per_s:.2f} samples/s" if standing.figures else standing.status
            print(f"round {number}  {place}/{len(order)}  {candidate_id}  {rate}", file=sys.stderr, flush=True)
            self._write()
        return True

    def _row(self, request: LaunchRequest, measurement: Measurement, number: int) -> Row:
        candidate, figures = request.candidate, measurement.figures
        return {
            "candidate_id": candidate.candidate_id,
            "round": number,
            "status": measurement.status.value,
            "reason": measurement.reason,
            "step_time_s_median": figures.step_time_s_median if figures else None,
            "step_time_s_iqr": figures.step_time_s_iqr if figures else None,
            "measured_steps": figures.measured_steps if figures else None,
            "peak_memory_bytes": measurement.peak_memory_bytes,
            "group_id": measurement.group_id,
            "position_in_group": measurement.position_in_group,
            "started_at": measurement.started_at,
            "probe": json.dumps(to_dict(measurement.probe)) if measurement.probe else None,
        }

    def _write(self) -> None:
        schema = COLUMNS.with_metadata({SWEEP_KEY: self._sweep.text, BEGUN_KEY: json.dumps(self._begun)})
        self._output.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(self.rows, schema=schema), self._output)


def record(sweep: Sweep, output: Path, *, most_whole: int, most_rounds: int, minutes: float) -> Recording:
    """Record a grid, or what is missing of it, for so many minutes from now."""
    until_s = time.monotonic() + 60 * minutes
    if sweep.workload.global_batch_size is None:
        sys.exit(f"{sweep.path}: a grid to record has one global_batch_size, so that step times compare")
    plan = make_plan(sweep)
    requests = RequestMaker(sweep=sweep, memory_budget_bytes=plan.memory_budget_bytes).make_all(plan.admitted)
    recording = Recording(sweep, output)
    workers = sweep.file.workers
    check_capacity(world_size=workers.count, resources_per_worker=workers.resources_per_worker)
    with tempfile.TemporaryDirectory() as logs:
        spec = GroupSpec.of_sweep(sweep, sweep_id=f"grid-{uuid.uuid4().hex[:8]}", log_folder=logs)
        with WarmGroup(spec) as client:
            for number in itertools.count(recording.rounds_done + 1):
                chosen = recording.missing_of_last() or _of_round(
                    recording, list(requests), most_whole=most_whole, most_rounds=most_rounds
                )
                if not chosen:
                    break
                client.recycle(f"round {number} starts in a fresh group")
                ordered = {each: requests[each] for each in chosen}
                if not recording.launch_round(number, ordered, client, until_s=until_s):
                    break
    return recording


def _of_round(recording: Recording, candidate_ids: Sequence[str], *, most_whole: int, most_rounds: int) -> list[str]:
    """Who is launched: all but those that ran out of memory, or the best with those that are not told from it."""
    if len(whole_rounds(recording.rounds)) < most_whole:
        too_large = {row["candidate_id"] for row in recording.rows if row["status"] == TrialStatus.OOM}
        return [each for each in candidate_ids if each not in too_large]
    return to_launch_again(at_one_pace(recording.rounds), most_rounds=most_rounds)


def main() -> None:
    """Record, and print what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep")
    parser.add_argument("--whole-rounds", type=int, default=4)
    parser.add_argument("--most-rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    sweep = load_sweep(arguments.sweep)
    output = arguments.output or Path(__file__).parent / "data" / f"{sweep.file.name}.parquet"
    with ray_session(address=sweep.file.cluster.address, environment=sweep.file.environment):
        recording = record(
            sweep,
            output,
            most_whole=arguments.whole_rounds,
            most_rounds=arguments.most_rounds,
            minutes=arguments.minutes,
        )
    rounds, level = recording.rounds, at_one_pace(recording.rounds)
    print(
        json.dumps(
            {
                "benchmark": "record_grid",
                "grid": sweep.file.name,
                "rounds": recording.rounds_done,
                "launches": len(recording.rows),
                "measured": len(rounds),
                "unsettled": len(unsettled(level)),
                "noise_pct": round(noise_pct(rounds), 2),
                "noise_at_one_pace_pct": round(noise_pct(level), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
