"""What the meter costs a loop of the user's own: the same loop with and without it, in turns, on two ranks.

    python benchmarks/own_loop_overhead.py --rounds 6 --output build/own_loop_overhead.json

A step is timed by the loop itself, from the end of one to the end of the next, in both runs. Each round runs both, the
first of them in turns; their ratio is taken pair by pair. The bare loop has DeepSpeed's engine and nothing of
raysweep around it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS = 16
WARM_UP = 6
"""Steps of a run that are not counted: three of the memory pass and three of warm-up."""
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "use_cache": False,
}
SEQUENCE_LENGTH = 128
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t for a 95 % interval, by degrees of freedom."""


class Enough(BaseException):
    """Ends the bare loop."""


class Bare:
    """Stands in for the meter, and does nothing but end the loop."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def step(self) -> None:
        """Note the time; leave after the last step."""
        self.ends_s.append(time.perf_counter())
        if len(self.ends_s) == WARM_UP + STEPS:
            raise Enough


def step_s(ends_s: list[float]) -> float:
    """Median time of a step in seconds, warm-up left out."""
    return statistics.median(b - a for a, b in zip(ends_s[WARM_UP - 1 :], ends_s[WARM_UP:], strict=False))


def build() -> Any:
    """A Llama of four blocks."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens, made beforehand."""

    tokens = torch.randint(0, 256, (2048, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def loop(config: dict[str, Any], meter: Any, *, ends_s: list[float] | None = None) -> None:
    """DeepSpeed's own loop."""
    import deepspeed

    model = build()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    size, micro_step = config["train_micro_batch_size_per_gpu"], 0
    while True:
        for _ in range(config["gradient_accumulation_steps"]):
            first = (micro_step * dist.get_world_size() + dist.get_rank()) * size
            tokens = Samples.tokens[[index % len(Samples.tokens) for index in range(first, first + size)]]
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
            micro_step += 1
        if ends_s is not None:
            ends_s.append(time.perf_counter())
        meter.step()


def make_trainer(folder: str, ends_s: list[float] | None = None) -> Any:
    """A Trainer of the same model; a callback notes when its steps end."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Ends(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if ends_s is not None:
                ends_s.append(time.perf_counter())

    arguments = TrainingArguments(output_dir=folder, disable_tqdm=True)
    return Trainer(model=build(), args=arguments, train_dataset=Samples(), callbacks=[Ends()])


def bare_loop(request: Any, folder: str) -> float:
    """Median step time of the loop without raysweep's meter."""
    meter = Bare()
    with contextlib.suppress(Enough):
        loop(dict(request.ds_config), meter)
    return step_s(meter.ends_s)


def bare_trainer(request: Any, folder: str) -> float:
    """Median step time of the Trainer without raysweep's callback."""
    from transformers import TrainerCallback

    from raysweep.worker.trainer_loop import candidate_fields, decided

    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step >= WARM_UP + STEPS

    ends_s: list[float] = []
    with decided(candidate_fields(request)):
        trainer = make_trainer(folder, ends_s)
        trainer.add_callback(Stops())
        trainer.train()
    return step_s(ends_s)


def with_meter(request: Any, kind: str, folder: str, context: Any) -> tuple[float, float]:
    """Median step time as the loop sees it, and as the meter reports it."""
    from raysweep.worker.loop import measure_candidate

    ends_s: list[float] = []
    kwargs = {"ends_s": ends_s} | ({"folder": folder} if kind == "trainer" else {})
    name = f"own_loop_overhead:{'make_trainer' if kind == 'trainer' else 'loop'}"
    model = {"kind": kind, kind: name, "kwargs": kwargs, "block_lists": [], "python_path": str(Path(__file__).parent)}
    report = measure_candidate(replace(request, workload=replace(request.workload, model=model)), context)
    return step_s(ends_s), statistics.median(report.step_times_s)


def run_rank(rank: int, folder: str, rounds: int, kinds: list[str], stages: list[int]) -> None:
    """All runs of one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    from raysweep.worker.process import prepare_process

    context = prepare_process(rank=rank, local_rank=rank, local_world_size=2, world_size=2, node="here")
    import own_loop_overhead as own  # under the name by which the meter's run imports it

    found: dict[str, list[list[float]]] = {}
    for number in range(rounds):
        for kind in kinds:
            bare: Callable[..., float] = own.bare_trainer if kind == "trainer" else own.bare_loop
            for stage in stages:
                request = request_for(stage)
                runs: dict[str, Any] = {}
                for each in ("bare", "metered") if number % 2 == 0 else ("metered", "bare"):
                    if each == "bare":
                        runs[each] = bare(request, folder)
                        clean_up()
                    else:
                        runs[each] = own.with_meter(request, kind, folder, context)
                found.setdefault(f"{kind} {stage}", []).append([runs["bare"], *runs["metered"]])
                if rank == 0:
                    print(
                        number,
                        kind,
                        stage,
                        [f"{1000 * value:.1f}" for value in found[f"{kind} {stage}"][-1]],
                        flush=True,
                    )
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))


def clean_up() -> None:
    """After a bare run: what raysweep's own teardown does."""
    import gc

    from raysweep.worker.engine import clear_stage3_globals
    from raysweep.worker.lent_training import without_lasting_state

    with without_lasting_state():
        pass
    clear_stage3_globals()
    gc.collect()


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
        window=MeasurementWindow(
            warmup_min_steps=3, warmup_max_steps=3, measured_steps=STEPS, measured_s=0.0, memory_pass_steps=3
        ),
    )


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios with its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = T_95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> None:
    """Run, and print a row a kind and stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, choices=range(2, 11))
    parser.add_argument("--kinds", default="loop,trainer")
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--output", help="file for all figures, as JSON")
    given = parser.parse_args()
    kinds, stages = given.kinds.split(","), [int(stage) for stage in given.stages.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(folder, given.rounds, kinds, stages), nprocs=2)
        found = json.loads(Path(folder, "found.json").read_text())
    print("kind     stage  bare ms  with meter ms  ratio (95 % interval)    as reported")
    for name, rows in found.items():
        kind, stage = name.split()
        ratio, low, high = interval([metered / bare for bare, metered, _ in rows])
        reported = interval([told / bare for bare, _, told in rows])[0]
        bare_ms, metered_ms = (1000 * statistics.median(row[index] for row in rows) for index in (0, 1))
        times = f"{kind:<9}{stage:<7}{bare_ms:<9.1f}{metered_ms:<15.1f}"
        print(f"{times}{ratio:.3f} ({low:.3f} to {high:.3f})   {reported:.3f}")
    if given.output:
        Path(given.output).parent.mkdir(parents=True, exist_ok=True)
        Path(given.output).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
