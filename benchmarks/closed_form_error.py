"""Compares the closed form of the memory prediction with the peaks of real runs; prints one JSON line.

python benchmarks/closed_form_error.py             # the runs that are kept with the tests
python benchmarks/closed_form_error.py RESULTS     # what a sweep launched
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raysweep.candidate import Candidate
from raysweep.memory import ZeroSettings, estimate_memory
from raysweep.results.store import load_trials
from raysweep.workload import Workload, gpt_shape

MEASURED = Path(__file__).parents[1] / "tests" / "unit" / "data" / "closed_form_measured.json"

Run = Mapping[str, Any]


def errors_by_group() -> dict[str, dict[str, float]]:
    """Group of runs -> how many, and the median and largest relative error in percent, its sign dropped."""
    runs = json.loads(MEASURED.read_text())["runs"]
    groups: dict[str, Callable[[Run], bool]] = {
        "quickstart": _is_quickstart,
        "fp32": lambda run: run["precision"] == "fp32",
        "others": lambda run: not _is_quickstart(run) and run["precision"] != "fp32",
        "all": lambda run: True,
    }
    return {name: _summary([abs(error_pct(run)) for run in runs if belongs(run)]) for name, belongs in groups.items()}


def error_pct(run: Run) -> float:
    """Predicted over measured peak, less 1, in percent."""
    settings = ZeroSettings(reduce_bucket_size=run["reduce_bucket_size"])
    predicted_bytes = estimate_memory(candidate_of(run), workload_of(run), settings).peak_bytes
    return 100 * (predicted_bytes / run["peak_memory_bytes"] - 1)


def workload_of(run: Run, *, device: str = "cpu") -> Workload:
    """The workload of a kept run."""
    shape = gpt_shape(
        blocks=run["blocks"],
        hidden=run["hidden"],
        vocab_size=run["vocab_size"],
        positions=run["sequence_length"],
        tied=run["tied"],
    )
    return Workload(
        model={"kind": "gpt", "tied": run["tied"]},
        shape=shape,
        data={},
        sequence_length=run["sequence_length"],
        precision=run["precision"],
        optimizer={},
        world_size=run["world_size"],
        device=device,
    )


def candidate_of(run: Run) -> Candidate:
    """The candidate of a kept run."""
    return Candidate(
        zero_stage=run["zero_stage"],
        activation_checkpoint_interval=run["activation_checkpoint_interval"],
        micro_batch_size_per_gpu=run["micro_batch_size_per_gpu"],
        gradient_accumulation_steps=run["gradient_accumulation_steps"],
    )


def errors_of_sweep(results: str) -> dict[str, float]:
    """The same of the candidates of a sweep whose peak is known, by the predictions that it was planned with."""
    records = load_trials(results)
    pairs = [(record.estimated_memory_bytes, record.peak_memory_bytes) for record in records]
    return _summary([abs(100 * (predicted / peak - 1)) for predicted, peak in pairs if predicted and peak])


def _is_quickstart(run: Run) -> bool:
    """The space of search_spaces/quickstart.yaml, with a larger reduce bucket."""
    return bool(run["precision"] == "bf16" and run["world_size"] == 2 and run["blocks"] == 4)


def _summary(errors_pct: list[float]) -> dict[str, float]:
    return {
        "n": len(errors_pct),
        "median_error_pct": round(statistics.median(errors_pct), 3),
        "max_error_pct": round(max(errors_pct), 2),
    }


def main() -> None:
    """Print the errors of each group, or of a sweep."""
    print(json.dumps(errors_of_sweep(sys.argv[1]) if len(sys.argv) > 1 else errors_by_group()))


if __name__ == "__main__":
    main()
