"""Predicts a worker's peak memory in closed form: the largest phase of a step, term by term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from raysweep.candidate import Candidate
from raysweep.memory_terms import phase_terms
from raysweep.offload import host_bytes, on_device
from raysweep.workload import Workload
from raysweep.zero_settings import ZeroSettings
from raysweep.zero_terms import Case

__all__ = ["MemoryEstimate", "ZeroSettings", "estimate_memory"]

RELATIVE_BAND = {"cpu": 0.12, "cuda": 0.2}
"""How far a peak may lie from its prediction, by device type.

On CPU: above the worst error over the configurations that were really run (docs/memory.md). On CUDA no run has
confirmed the terms yet, so only what is predicted above 1.25 times the budget (1 / (1 - 0.2)) counts as too large.
"""

FOREIGN_BAND = {"activations": 0.5, "logits": 0.6}
"""The same by term for other models than the built-in one; other terms keep the device's band.

It holds where their activations were not measured, and on CUDA, because they are measured with CPU kernels: those keep
dropout masks in the activations' dtype, and with dropout the whole matrix of attention. Measured and on CPU, the worst
error of `benchmarks/memory_accuracy.py closed` is far inside the device's band, which then holds for all terms.

Not measured, a block is taken to save 16.05 hidden-sized tensors, as the built-in one does. Others differ: a Llama
block with its gated feed-forward part saves 23.1 and a GPT-2 block with dropout 28.0, while frozen weights and narrower
blocks save less. A loss taken on half-precision logits holds 6 bytes a logit, where 12 are counted. So the true peak
may lie well above the prediction, and these terms count by what is certain. Model states follow from the parameters
alone, whatever the model.
"""

COMPILED_BAND = {"activations": 1.0}
"""The same by term where blocks are compiled: the compiler chooses what a block saves and what it computes again, so
nothing is certain of that. No run has been compared with it.
"""

OFFLOAD_BAND = 0.5
"""The same with offload, whose host and device buffers the closed form does not have; no run has confirmed it."""

CLOSED_FORM = "closed form"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Predicted bytes a worker, by phase of a steady optimizer step and by term."""

    phases: Mapping[str, Mapping[str, int]]
    """Phase -> term -> bytes, the phases in the order of a step."""
    peak_phase: str
    peak_bytes: int
    band: float
    """The true peak is expected within peak_bytes x (1 +- band)."""
    device: str
    host_bytes: int = 0
    """Beside these, in the host's memory: the optimizer or the parameters, where they are offloaded from a GPU."""
    source: str = CLOSED_FORM
    """How it was found: closed form, trace, or trace of other micro-batches."""

    @property
    def lower_bound_bytes(self) -> int:
        """Only this may prune: what the true peak is not expected to go below."""
        return round(self.peak_bytes * (1 - self.band))

    @property
    def upper_bound_bytes(self) -> int:
        """What the true peak is not expected to pass."""
        return round(self.peak_bytes * (1 + self.band))


def estimate_memory(candidate: Candidate, workload: Workload, settings: ZeroSettings) -> MemoryEstimate:
    """Predict a candidate's peak: the largest phase of a step, each the sum of what is alive in it.

    Written from the source of DeepSpeed 0.19.8 for a transformer of equal blocks with fused attention, trained with
    Adam. The workload's shape must be known.
    """
    assert workload.shape is not None
    case = Case(candidate=candidate, workload=workload, settings=settings, shape=workload.shape)
    phases, moved_bytes = on_device(case, phase_terms(case)), host_bytes(case)
    phases = {phase: terms + _second_copy(case) for phase, terms in phases.items()}
    peak_phase = max(phases, key=lambda phase: phases[phase].total())
    return MemoryEstimate(
        phases={phase: dict(terms) for phase, terms in phases.items()},
        peak_phase=peak_phase,
        peak_bytes=phases[peak_phase].total(),
        band=max(_band(phases, case), OFFLOAD_BAND if moved_bytes else 0.0),
        device=workload.device,
        host_bytes=moved_bytes,
    )


def _second_copy(case: Case) -> Counter[str]:
    """hpZ keeps the parameters of stage 3 twice, the second time sharded over fewer workers: e P / size bytes.

    A trace with DeepSpeed 0.19.8 on two ranks, of 218 496 parameters in bf16, held 0.21 MiB more with size 2.
    """
    size = case.settings.zero_hpz_partition_size
    if case.zero_stage < 3 or size <= 1:
        return Counter()
    return Counter(secondary_parameters=case.element_bytes * case.shape.parameters // size)


def _band(phases: Mapping[str, Counter[str]], case: Case) -> float:
    """The device's band; else the share of the peak that may be missing by terms, in every phase."""
    known = RELATIVE_BAND[case.workload.device]
    is_measured = case.shape.activations is not None and case.workload.device == "cpu"
    bands = {} if case.workload.model["kind"] == "gpt" or is_measured else dict(FOREIGN_BAND)
    bands |= COMPILED_BAND if case.candidate.torch_compile else {}
    if not bands:
        return known
    certain_bytes = max(
        sum((1 - bands.get(term, known)) * size_bytes for term, size_bytes in terms.items())
        for terms in phases.values()
    )
    return 1 - certain_bytes / max(terms.total() for terms in phases.values())
