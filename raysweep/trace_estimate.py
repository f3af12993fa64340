"""Turns traces into a memory estimate: the fullest rank of each phase, with the band of its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysweep.memory import RELATIVE_BAND, MemoryEstimate
from raysweep.trace import PHASES

TRACED = "trace"
INTERPOLATED = "trace of other micro-batches"

TRACE_BAND = {"cpu": 0.002, "cuda": 0.2}
"""How far a peak may lie from a trace, by the device type of the workers.

On CPU traces were equal to the byte to what real ranks held in all configurations compared (docs/memory.md); what the
backend frees late is above them. A trace is made on the CPU, and is no bound for CUDA: kernels there keep other masks
and workspaces, and no run has confirmed one. So only what is above 1.25 times the budget (1 / (1 - 0.2)) is too large.
"""

CPU_ONLY_KINDS = ("optimizer_temporaries",)
"""Kinds of bytes that a CUDA run does not have: a fused Adam needs no temporaries."""

ON_HOST_KINDS = ("optimizer_states", "optimizer_temporaries", "gradients", "update")
"""Kinds that an offloaded optimizer has on the host."""

Terms = Mapping[str, Mapping[str, int]]
"""Phase -> kind -> bytes."""


def fullest_terms(of_ranks: Sequence[Terms], *, device: str) -> Terms:
    """Phase -> kind -> bytes of the rank that is fullest in the phase, less what the device does not have."""
    by_phase = {}
    for phase in PHASES:
        ranks = [_terms_on(device, terms[phase]) for terms in of_ranks]
        by_phase[phase] = max(ranks, key=lambda terms: sum(terms.values()))
    return by_phase


def _terms_on(device: str, terms: Mapping[str, int]) -> Mapping[str, int]:
    left_out = CPU_ONLY_KINDS if device == "cuda" else ()
    return {kind: size_bytes for kind, size_bytes in terms.items() if kind not in left_out}


def without_host(terms: Terms, *, master_bytes: int) -> Terms:
    """An offloaded optimizer's trace less what is on the host: states, temporaries, fp32 gradients, masters.

    A trace on the CPU cannot tell host from device by the tensors; it knows who made them. Not confirmed by any run.

    Args:
        terms: of a trace.
        master_bytes: fp32 master copy of the rank's share, which is built together with the parameters.
    """
    return {
        phase: {
            kind: max(0, size_bytes - master_bytes) if kind == "parameters_and_states" else size_bytes
            for kind, size_bytes in kinds.items()
            if kind not in ON_HOST_KINDS
        }
        for phase, kinds in terms.items()
    }


def estimate_from(
    terms: Terms, *, device: str, is_interpolated: bool, is_doubtful: bool, host_bytes: int = 0
) -> MemoryEstimate:
    """The estimate of a candidate.

    Args:
        terms: of `fullest_terms`, or interpolated between such.
        device: of the workers.
        is_interpolated: the candidate itself was not traced.
        is_doubtful: the model's code asked for numbers that were made up; the closed form's band is then kept.
        host_bytes: of the rank, beside the terms.
    """
    totals = {phase: sum(kinds.values()) for phase, kinds in terms.items()}
    peak_phase = max(totals, key=totals.__getitem__)
    return MemoryEstimate(
        phases=terms,
        peak_phase=peak_phase,
        peak_bytes=totals[peak_phase],
        band=max(TRACE_BAND[device], RELATIVE_BAND[device] if is_doubtful else 0.0),
        device=device,
        host_bytes=host_bytes,
        source=INTERPOLATED if is_interpolated else TRACED,
    )
