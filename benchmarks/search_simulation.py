"""Searches 200 simulated workloads whose truth has not the form of the searcher's model; prints one JSON line.

python benchmarks/search_simulation.py [--scenarios 200] [--trials 12] [--method guided]

The truth of a scenario has what the model of `raysweep/search/step_time.py` cannot express: a rate that grows as a
power of the tokens up to a ceiling, a cache that a micro-batch outgrows, a cliff at one micro-batch, a penalty of one
stage that multiplies its time, communication hidden behind backward up to a share, deviations of 4 % for each stage
and interval and of 2 % for each candidate, and 3 % noise on each launch. True peaks differ from predicted ones by 2 %.
Half of the scenarios fix the global batch.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics

from replay import METHODS, Grid, play, summary

from raysweep.candidate import Candidate
from raysweep.memory import estimate_memory
from raysweep.search.prospect import Prospect
from raysweep.space import SearchSpace
from raysweep.step_work import StepWork, step_work
from raysweep.workload import Workload, gpt_shape
from raysweep.zero_settings import ZeroSettings

NOISE = 0.03
FAMILY_SD = 0.04
OWN_SD = 0.02
PEAK_SD = 0.02
SPACE = SearchSpace(
    zero_stage=(0, 1, 2, 3), activation_checkpoint_interval=(0, 1, 2, 4), micro_batch_size_per_gpu=(1, 2, 4, 8, 16, 32)
)
FEWEST_ADMITTED = 24


def scenario(seed: int) -> Grid:
    """A workload, a machine and a budget, drawn from a seed."""
    while True:
        rng = random.Random(f"scenario {seed}")
        grid = _drawn(rng)
        if len(grid.rates) >= FEWEST_ADMITTED:
            return grid
        seed += 1_000_000


def _drawn(rng: random.Random) -> Grid:
    world_size = rng.choice((2, 4, 8, 16))
    workload = _workload(rng, world_size)
    settings = ZeroSettings(reduce_bucket_size=int(10 ** rng.uniform(6.5, 8.5)))
    candidates = [
        each
        for each, legal in SPACE.candidates(global_batch_size=workload.global_batch_size, world_size=world_size)
        if legal
    ]
    estimates = {each.candidate_id: estimate_memory(each, workload, settings) for each in candidates}
    peaks = sorted(estimate.peak_bytes for estimate in estimates.values())
    budget_bytes = peaks[int(rng.uniform(0.4, 0.85) * len(peaks))]
    truth = _Truth(rng, workload)
    admitted = [each for each in candidates if estimates[each.candidate_id].lower_bound_bytes <= budget_bytes]
    prospects = [
        Prospect(
            candidate=each,
            work=step_work(each, workload, settings),
            global_batch_size=_batch(each, world_size),
            predicted_memory_bytes=estimates[each.candidate_id].peak_bytes,
            memory_band=estimates[each.candidate_id].band,
        )
        for each in admitted
    ]
    times_s = {each.candidate.candidate_id: truth.step_time_s(each.candidate, each.work) for each in prospects}
    true_peaks = {name: round(estimates[name].peak_bytes * math.exp(rng.gauss(0, PEAK_SD))) for name in times_s}
    rates = {
        each.candidate.candidate_id: each.global_batch_size / times_s[each.candidate.candidate_id]
        for each in prospects
        if true_peaks[each.candidate.candidate_id] <= budget_bytes
    }
    return Grid(
        prospects=prospects,
        pruned=[each for each in candidates if each not in admitted],
        draw=lambda name, rng: times_s[name] * math.exp(rng.gauss(0, NOISE)),
        peaks_bytes=true_peaks,
        budget_bytes=budget_bytes,
        rates=rates,
        device=workload.device,
    )


def _workload(rng: random.Random, world_size: int) -> Workload:
    sequence_length = rng.choice((256, 512, 1024, 2048))
    hidden, blocks = rng.choice(((256, 4), (512, 8), (768, 12), (1024, 24), (2048, 24), (4096, 32)))
    shape = gpt_shape(blocks=blocks, hidden=hidden, vocab_size=32_000, positions=sequence_length, tied=True)
    return Workload(
        model={"kind": "gpt"},
        shape=shape,
        data={"kind": "synthetic"},
        sequence_length=sequence_length,
        precision="bf16",
        optimizer={},
        world_size=world_size,
        device=rng.choice(("cpu", "cuda")),
        global_batch_size=rng.choice((None, 32 * world_size)),
    )


def _batch(candidate: Candidate, world_size: int) -> int:
    return candidate.micro_batch_size_per_gpu * candidate.gradient_accumulation_steps * world_size


class _Truth:
    """The machine of a scenario, with effects that the searcher's model lacks."""

    def __init__(self, rng: random.Random, workload: Workload) -> None:
        scale = 1.0 if workload.device == "cuda" else 3e-4
        self._tokens = workload.tokens_per_sample
        self._peak_flops = rng.uniform(60, 500) * 1e12 * scale
        self._full_tokens = 2 ** rng.uniform(9, 14)
        self._power = rng.uniform(0.1, 0.6)
        self._sent_bytes_per_s = 10 ** rng.uniform(9.5, 11.5) * math.sqrt(scale)
        self._hidden_share = {stage: rng.uniform(0.0, 0.9) for stage in range(4)}
        self._call_s = 10 ** rng.uniform(-5, -3.5)
        self._optimizer_bytes_per_s = rng.uniform(0.3, 2) * 1e12 * math.sqrt(scale)
        self._step_s = 10 ** rng.uniform(-3, -1.7)
        self._stage_penalty = {rng.randrange(4): rng.uniform(1.0, 1.25)}
        self._cache_micro_batch = 2 ** rng.uniform(1, 6)
        self._cache_penalty = rng.uniform(0.0, 0.3)
        self._cliff = (rng.choice((2, 4, 8, 16, 32)), rng.uniform(1.0, 1.3))
        self._recompute_cost = rng.uniform(0.8, 1.3)
        self._families = {(stage, k): math.exp(rng.gauss(0, FAMILY_SD)) for stage in range(4) for k in (0, 1, 2, 4)}
        self._rng = rng

    def step_time_s(self, candidate: Candidate, work: StepWork) -> float:
        micro_batch, stage = candidate.micro_batch_size_per_gpu, candidate.zero_stage
        reached = min(1.0, (micro_batch * self._tokens / self._full_tokens) ** self._power)
        compute_s = work.compute_flops / (self._peak_flops * reached)
        recompute_s = self._recompute_cost * work.recompute_flops / (self._peak_flops * reached)
        outgrown = 1 / (1 + (self._cache_micro_batch / micro_batch) ** 4)
        compute_s *= 1 + self._cache_penalty * outgrown
        sent_s = (work.reduce_bytes + work.gather_bytes) / self._sent_bytes_per_s
        # In the recorded grids a hook of stages 1 and 2 costs about a third of a call of stage 3's.
        sent_s += (work.collectives + work.gather_calls + work.gradient_hooks / 3) * self._call_s
        exposed_s = max(sent_s - self._hidden_share[stage] * compute_s * 2 / 3, 0.05 * sent_s)
        fixed_s = work.optimizer_bytes / self._optimizer_bytes_per_s + self._step_s
        total_s = compute_s + recompute_s + exposed_s + fixed_s
        total_s *= self._stage_penalty.get(stage, 1.0) * self._families[stage, candidate.activation_checkpoint_interval]
        if micro_batch >= self._cliff[0]:
            total_s *= self._cliff[1]
        return total_s * math.exp(self._rng.gauss(0, OWN_SD))


def main() -> None:
    """Print the figures of one method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--method", default="guided", choices=METHODS)
    arguments = parser.parse_args()
    grids = [scenario(seed) for seed in range(arguments.scenarios)]
    played = [play(arguments.method, grid, seed=seed, trials=arguments.trials) for seed, grid in enumerate(grids)]
    print(
        json.dumps(
            {
                "benchmark": "search_simulation",
                "method": arguments.method,
                "scenarios": len(grids),
                "admitted_mean": round(statistics.fmean(len(grid.prospects) for grid in grids), 1),
                **summary(grids, played),
            }
        )
    )


if __name__ == "__main__":
    main()
