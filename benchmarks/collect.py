"""Runs the benchmarks, keeps the line that each prints, and writes docs/benchmarks.md from those lines.

python benchmarks/collect.py [--only NAME,NAME] [--write]
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from raysweep.tables import aligned
from raysweep.units import GIB

HERE = Path(__file__).parent
FIGURES = HERE / "figures"
PAGE = HERE.parent / "docs" / "benchmarks.md"
IS = {"at least": operator.ge, "at most": operator.le}


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be."""

    figure: str
    """A key of the line; `a.b` where it lies deeper."""
    rule: str
    """`at least` or `at most`."""
    value: float


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One script, what it compares, and what is hoped of it."""

    name: str
    compares: str
    targets: tuple[Target, ...]
    arguments: tuple[str, ...] = ()


BENCHMARKS = (
    Benchmark(
        "ray_pattern",
        "the same 12 candidates through warm worker groups and through a fresh TorchTrainer a trial, Ray's own pattern",
        (Target("wall_ratio", "at least", 4),),
    ),
    Benchmark(
        "driver_overhead",
        "what recording and Ray Tune add to a candidate that does no work, over 2,000 of them",
        (
            Target("ms_per_candidate", "at most", 80),
            Target("ms_outside_tune", "at most", 5),
            Target("rss_growth_mib", "at most", 100),
            Target("growth_exponent", "at most", 1.1),
        ),
    ),
    Benchmark(
        "vs_deepspeed_autotuner",
        "DeepSpeed's autotuner and raysweep on the same model, both answers measured again by a plain DeepSpeed loop",
        (
            Target("search_wall_ratio", "at least", 5),
            Target("total_wall_ratio", "at least", 2),
            Target("throughput_ratio", "at least", 0.98),
        ),
    ),
    Benchmark(
        "measurement_overhead",
        "samples/s that raysweep reports and those of a plain DeepSpeed loop, in turn",
        (Target("ratio_mean", "at least", 0.98), Target("ratio_mean", "at most", 1.02)),
    ),
    Benchmark(
        "own_loop_overhead",
        "a loop and a Trainer of the user's own as a candidate and without raysweep, step by step in turns",
        (Target("ratio_lowest", "at least", 0.97), Target("ratio_highest", "at most", 1.03)),
    ),
    Benchmark(
        "hand_tuned",
        "the first stage that fits, then micro-batches doubled until out of memory, and raysweep, on four workloads",
        (Target("throughput_ratio", "at least", 1),),
    ),
    Benchmark(
        "plan_scaling",
        "the plan of ever larger spaces, up to a million candidates",
        (
            Target("largest_s", "at most", 10),
            Target("largest_rss_mib", "at most", 1024),
            Target("growth_exponent", "at most", 1.1),
        ),
    ),
    Benchmark(
        "memory_accuracy",
        "traced peaks with those of real ranks, to the byte; a sample of 24 of the 128 configurations",
        (
            Target("max_error_pct", "at most", 0.1),
            Target("closed_form_median_error_pct", "at most", 2),
            Target("closed_form_max_error_pct", "at most", 12),
        ),
        ("whole", "--count", "12"),
    ),
    Benchmark(
        "pruning_audit",
        "what the closed form prunes under many budgets with what was measured",
        (Target("closed_form.false_discards", "at most", 0),),
    ),
    Benchmark(
        "large_model",
        "the trace of a Llama of 7 billion parameters with its closed form and the textbook",
        (Target("wall_s", "at most", 600), Target("largest_resident_gib", "at most", 2)),
    ),
    Benchmark(
        "search_regret",
        "guided search with other methods on recorded grids",
        (Target("within_2pct_share", "at least", 0.95), Target("trials_max", "at most", 12)),
    ),
    Benchmark(
        "step_time_accuracy",
        "the step-time model after six launches with the rest of recorded grids",
        (Target("error_met_share", "at least", 1), Target("kendall_tau", "at least", 0.85)),
    ),
    Benchmark(
        "slow_link",
        "the winner over two nodes on a fast link and on one of 200 Mbit/s, and stage 3 with every block checkpointed "
        "(as root)",
        (Target("sent_ratio", "at most", 0.99), Target("slow.gain", "at least", 1)),
    ),
    Benchmark(
        "search_simulation",
        "the answer of guided search with the best of the space, on 200 simulated workloads",
        (Target("within_2pct_share", "at least", 0.9), Target("trials_max", "at most", 12)),
    ),
)


def run(benchmark: Benchmark) -> None:
    """Run one and keep its line, with the date, the machine and the seconds that it took."""
    command = [sys.executable, str(HERE / f"{benchmark.name}.py"), *benchmark.arguments]
    print(f"{benchmark.name}: {benchmark.compares}", flush=True)
    began_s = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not lines:
        print(f"{benchmark.name}: failed with exit status {done.returncode}", file=sys.stderr)
        return
    kept = {
        "measured_on": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "wall_s": round(time.perf_counter() - began_s),
        "lines": lines,
    }
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / f"{benchmark.name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(lines), flush=True)


def machine() -> str:
    """The processor, its cores and the memory."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    return f"{os.cpu_count()} cores of {model}, {psutil.virtual_memory().total / GIB:.0f} GiB"


def page() -> str:
    """docs/benchmarks.md: a table of targets, then each benchmark's figures."""
    rows, sections = [], []
    for benchmark in BENCHMARKS:
        file = FIGURES / f"{benchmark.name}.json"
        kept = json.loads(file.read_text()) if file.exists() else None
        rows += [_row(benchmark, target, kept) for target in benchmark.targets]
        sections.append(_section(benchmark, kept))
    table = aligned(("benchmark", "figure", "target", "measured", "met"), rows)
    return (
        "# Benchmarks\n\nWritten by `make bench` from the lines that the scripts in `benchmarks/` print; nothing here "
        "is entered by hand.\n\n```text\n" + table + "\n```\n\n" + "\n".join(sections)
    )


def _row(benchmark: Benchmark, target: Target, kept: dict[str, Any] | None) -> tuple[str, ...]:
    wanted = f"{target.rule} {target.value:g}"
    measured = None if kept is None else figure(kept["lines"], target.figure)
    if measured is None:
        return benchmark.name, target.figure, wanted, "missing", "-"
    is_met = IS[target.rule](measured, target.value)
    return benchmark.name, target.figure, wanted, f"{measured:g}", "yes" if is_met else "no"


def figure(lines: list[dict[str, Any]], path: str) -> float | None:
    """A figure of the last line by its path; None where it has none."""
    found: Any = lines[-1]
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _section(benchmark: Benchmark, kept: dict[str, Any] | None) -> str:
    head = f"## {benchmark.name}\n\nCompares {benchmark.compares}.\n"
    if kept is None:
        return head + "\nMissing: it has not been run.\n"
    lines = "\n".join(json.dumps(line) for line in kept["lines"])
    return f"{head}\n{kept['measured_on']}, {kept['machine']}, {kept['wall_s']} s:\n\n```json\n{lines}\n```\n"


def main() -> None:
    """Run what is asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--write", action="store_true", help="run none, only write the page")
    arguments = parser.parse_args()
    wanted = [each for each in arguments.only.split(",") if each]
    unknown = set(wanted) - {benchmark.name for benchmark in BENCHMARKS}
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    for benchmark in [] if arguments.write else BENCHMARKS:
        if not wanted or benchmark.name in wanted:
            run(benchmark)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
