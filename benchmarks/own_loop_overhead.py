"""What the meter costs a loop of the user's own: the same loop with and without it, step by step in turns.

    python benchmarks/own_loop_overhead.py --rounds 2

Two groups of two ranks train the same model. One has DeepSpeed's engine and nothing of raysweep around it, the other is
measured as a candidate. They take turns: while one takes an optimizer step the other waits, so a pair of steps is as
close in time as can be, and what the machine does otherwise is the same for both. In the next round the groups change
roles. A step is over when both ranks of a group are done. For each kind and stage, by medians over all pairs: `ratio`
is a step as the meter reports it against the bare one beside it; `cost` is the same with what the meter itself takes,
which it leaves out of its report. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from loops_in_turns import SEQUENCE_LENGTH, STEPS, WARM_UP, Bare, Enough, Turns, loop, make_trainer

WINDOW = {"warmup_min_steps": 3, "warmup_max_steps": 3, "measured_steps": STEPS, "memory_pass_steps": 3}


def run_bare(request: Any, kind: str, folder: str, turns: Turns) -> None:
    """The loop, or the Trainer, without raysweep's meter or callback."""
    if kind == "loop":
        with contextlib.suppress(Enough):
            loop(dict(request.ds_config), Bare(), turns=turns)
    else:
        from transformers import TrainerCallback

        from raysweep.worker.trainer_loop import candidate_fields, decided

        class Stops(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = state.global_step >= WARM_UP + STEPS

        with decided(candidate_fields(request)):
            trainer = make_trainer(folder, turns)
            trainer.add_callback(Stops())
            trainer.train()
    turns.leave()
    _clean_up()


def _clean_up() -> None:
    """After a bare run: what raysweep's own teardown does."""
    import gc

    from raysweep.worker.engine import clear_stage3_globals
    from raysweep.worker.lent_training import without_lasting_state

    with without_lasting_state():
        pass
    clear_stage3_globals()
    gc.collect()


def run_measured(request: Any, kind: str, folder: str, turns: Turns, context: Any) -> list[float]:
    """The same as a candidate; the step times that the meter reports."""
    from raysweep.worker.loop import measure_candidate

    kwargs: dict[str, Any] = {"turns": turns} | ({"folder": folder} if kind == "trainer" else {})
    name = f"loops_in_turns:{'make_trainer' if kind == 'trainer' else 'loop'}"
    model = {"kind": kind, kind: name, "kwargs": kwargs, "block_lists": [], "python_path": str(Path(__file__).parent)}
    report = measure_candidate(replace(request, workload=replace(request.workload, model=model)), context)
    return list(report.step_times_s)


def run_process(number: int, barrier: Any, folder: str, ports: list[int], rounds: int, cases: list[Any]) -> None:
    """All runs of one rank of one of the groups."""
    group, rank = divmod(number, 2)
    torch.set_num_threads(1)
    # As under torchrun or Ray Train: Accelerate asks for an address, though the process group is there already.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[group]))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{group}", rank=rank, world_size=2)
    from raysweep.worker.process import prepare_process

    context = prepare_process(rank=rank, local_rank=rank, local_world_size=2, world_size=2, node="here")
    for each in range(rounds):
        bare = (group + each) % 2 == 0
        for kind, stage in cases:
            turns = Turns(barrier, bare=bare)
            if bare:
                run_bare(request_for(stage), kind, folder, turns)
                found: dict[str, Any] = {}
            else:
                told_s = run_measured(request_for(stage), kind, folder, turns, context)
                found = {"told_s": told_s, "intervals_s": turns.intervals_s()}
            line = {"kind": kind, "stage": stage, "round": each, "bare": bare, "steps_s": turns.steps_s(), **found}
            with Path(folder, f"process-{number}.jsonl").open("a") as out:
                print(json.dumps(line), file=out)
            if bare and rank == 0:
                print(f"round {each}: {kind}, stage {stage}", file=sys.stderr, flush=True)


def request_for(stage: int) -> Any:
    """Micro-batch 2, accumulation 2, two ranks."""
    from raysweep.budget import MeasurementWindow
    from raysweep.candidate import Candidate
    from raysweep.trial import LaunchRequest
    from raysweep.workload import Workload

    zero = {"stage": stage, "reduce_bucket_size": 2_000_000, "allgather_bucket_size": 2_000_000}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": 1_000_000, "stage3_param_persistence_threshold": 1000}
    return LaunchRequest(
        candidate=Candidate(
            zero_stage=stage,
            activation_checkpoint_interval=0,
            micro_batch_size_per_gpu=2,
            gradient_accumulation_steps=2,
        ),
        workload=Workload(
            model={"kind": "loop"},
            shape=None,
            data={"kind": "synthetic"},
            sequence_length=SEQUENCE_LENGTH,
            precision="bf16",
            optimizer={},
            world_size=2,
        ),
        ds_config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "bf16": {"enabled": True},
            "zero_optimization": zero,
        },
        window=MeasurementWindow(**WINDOW, measured_s=0.0),
    )


def figures(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a kind and stage, over all rounds."""
    rounds: dict[int, dict[bool, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        rounds[line["round"]][line["bare"]].append(line)
    bare_s, costs, ratios = [], [], []
    for sides in rounds.values():
        bare, measured, reported = (
            [max(ranks) for ranks in zip(*steps, strict=True)]
            for steps in (
                [line["steps_s"] for line in sides[True]],
                [line["steps_s"] for line in sides[False]],
                [reported_s(line) for line in sides[False]],
            )
        )
        bare_s += bare
        costs += [math.log(each / beside) for each, beside in zip(measured, bare, strict=True)]
        ratios += [math.log(each / beside) for each, beside in zip(reported, bare, strict=True)]
    low, high = median_interval(ratios)
    return {
        "pairs": len(ratios),
        "bare_ms": round(1000 * statistics.median(bare_s), 1),
        "cost": round(math.exp(statistics.median(costs)), 4),
        "ratio": round(math.exp(statistics.median(ratios)), 4),
        "ratio_low": round(math.exp(low), 4),
        "ratio_high": round(math.exp(high), 4),
    }


def reported_s(line: dict[str, Any]) -> list[float]:
    """A rank's steps as reported: what the meter left out of an interval, it would leave out of the step alone."""
    both = zip(line["steps_s"], line["intervals_s"], line["told_s"], strict=False)
    return [step - (seen - told) for step, seen, told in both]


def median_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of a median by order statistics, which asks nothing of how the values are spread."""
    ordered = sorted(values)
    half = 1.96 * math.sqrt(len(ordered)) / 2
    first, last = math.floor(len(ordered) / 2 - half), math.ceil(len(ordered) / 2 + half)
    return ordered[max(0, first)], ordered[min(len(ordered) - 1, last)]


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="an even number: the groups change roles")
    parser.add_argument("--kinds", default="loop,trainer")
    parser.add_argument("--stages", default="0,1,2,3")
    given = parser.parse_args()
    cases = [(kind, int(stage)) for kind in given.kinds.split(",") for stage in given.stages.split(",")]
    os.environ["OMP_NUM_THREADS"] = "1"  # four processes share the machine; they read it when torch loads
    barrier = mp.get_context("spawn").Barrier(4)
    with tempfile.TemporaryDirectory() as folder:
        ports = [free_port(), free_port()]
        mp.spawn(run_process, args=(barrier, folder, ports, given.rounds, cases), nprocs=4)
        lines = [json.loads(line) for path in Path(folder).glob("process-*.jsonl") for line in path.open()]
    found = []
    for kind, stage in cases:
        of_case = [line for line in lines if (line["kind"], line["stage"]) == (kind, stage)]
        found.append({"kind": kind, "stage": stage, **figures(of_case)})
    ratios = [case["ratio"] for case in found]
    print(json.dumps({"ratio_lowest": min(ratios), "ratio_highest": max(ratios), "cases": found}))


if __name__ == "__main__":
    main()
