"""What trials of earlier sweeps showed of the memory predictions, kept in the user's cache folder."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.calibration import Calibration, Pair, calibrate
from raysweep.estimate.facts_cache import cache_folder, write_cached
from raysweep.memory import CLOSED_FORM, MemoryEstimate
from raysweep.results.prediction import described
from raysweep.results.records import TrialRecord

MOST_SWEEPS = 20
"""Of each kind, that are kept: the newest."""
LEAST_COVERAGE = 0.9
"""Probability that a band must promise to be used; 9 trials do."""
LEAST_BAND = 0.01
"""A calibrated prediction is never taken to be closer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTrials:
    """The calibrations that hold for one sweep: by number of workers and by how the memory was predicted.

    A file for each kind of device and number of workers; in it trials are apart by the kind of prediction, by the
    model's class and by its attention, where that is an axis: the closed form errs differently from one to the next.
    """

    device: str
    """`cpu`, or the accelerator as Ray calls it."""
    model: str
    """Class of the model, as `model_class` tells it."""
    folder: Path

    def of(self, estimate: MemoryEstimate, *, world_size: int, attention: str | None = None) -> Calibration | None:
        """The calibration of a prediction; None where too few trials promise too little.

        Args:
            estimate: the prediction.
            world_size: workers that train its candidate.
            attention: the candidate's own; None for that of the model section.
        """
        kept = _read(self._file(world_size)).get(self._entry(estimate, attention), {})
        found = calibrate([_pair(each) for pairs in kept.values() for each in pairs])
        return found if found.coverage >= LEAST_COVERAGE and math.isfinite(found.band) else None

    def keep(
        self, records: Iterable[TrialRecord], estimates: Mapping[str, MemoryEstimate], *, sweep_sha256: str
    ) -> None:
        """Add what a sweep showed; a sweep that goes on, or runs again, replaces what it had shown."""
        found: dict[tuple[int, str], list[list[int]]] = defaultdict(list)
        for world_size, entry, pair in self._pairs(records, estimates):
            found[world_size, entry].append([pair.predicted_bytes, pair.measured_bytes])
        for world_size in sorted({size for size, _ in found}):
            kept = _read(self._file(world_size))
            for (size, entry), pairs in found.items():
                if size == world_size:
                    sweeps = {name: old for name, old in kept.get(entry, {}).items() if name != sweep_sha256}
                    kept[entry] = dict([*sweeps.items(), (sweep_sha256, pairs)][-MOST_SWEEPS:])
            write_cached(self._file(world_size), kept)

    def note(self, calibration: Calibration, *, world_size: int, attention: str | None = None) -> str:
        """What is used, in a sentence."""
        model = self._of(attention)
        return (
            f"memory predictions of the search start from {calibration.trials} candidates of earlier sweeps "
            f"({model} on {self.device}, {world_size} workers): {described(calibration)}; nothing is pruned by that, "
            "and --no-calibration leaves it out"
        )

    def _pairs(
        self, records: Iterable[TrialRecord], estimates: Mapping[str, MemoryEstimate]
    ) -> Iterator[tuple[int, str, Pair]]:
        for record in records:
            estimate = estimates.get(record.candidate_id)
            if estimate and record.peak_memory_bytes and not record.torch_compile:
                pair = Pair(predicted_bytes=estimate.peak_bytes, measured_bytes=record.peak_memory_bytes)
                yield record.world_size, self._entry(estimate, record.attn_implementation), pair

    def _entry(self, estimate: MemoryEstimate, attention: str | None) -> str:
        return f"{'closed form' if estimate.source == CLOSED_FORM else 'trace'} of {self._of(attention)}"

    def _of(self, attention: str | None) -> str:
        return f"{self.model} with {attention} attention" if attention else self.model

    def _file(self, world_size: int) -> Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.device)}-{world_size}.json"


def earlier_trials(model: Mapping[str, Any], *, device: str) -> EarlierTrials:
    """Those in the user's cache folder.

    Args:
        model: the workload's model section.
        device: kind of the workers' devices.
    """
    return EarlierTrials(device=device, model=model_class(model), folder=cache_folder() / "calibration")


def model_class(model: Mapping[str, Any]) -> str:
    """`gpt`, the class or type of a transformers config, or the user's function."""
    kind = str(model["kind"])
    config = model.get("config")
    named = model.get("config_class") or (config.get("model_type") if isinstance(config, Mapping) else None)
    return kind if kind == "gpt" else str(named or model.get(kind) or kind)


def _read(file: Path) -> dict[str, dict[str, list[list[int]]]]:
    """A file's entries; none where it is not there or cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _pair(numbers: list[int]) -> Pair:
    predicted_bytes, measured_bytes = numbers
    return Pair(predicted_bytes=predicted_bytes, measured_bytes=measured_bytes)
