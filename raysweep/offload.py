"""Tells host from device bytes where DeepSpeed keeps the optimizer, or the parameters, in the host's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from raysweep.zero_terms import ADAM_MOMENT_BYTES, FP32_BYTES, Case

STATES = frozenset({"optimizer_states", "optimizer_temporaries"})
"""Terms that go to the host with the optimizer, in every phase."""


def host_bytes(case: Case) -> int:
    """Bytes of one rank in the host's memory; 0 where host and device are one, and at stage 0, which offloads nothing.

    The optimizer: 12 P/N master copy and moments, and 4 P/N fp32 gradients, of the share `ratio` (stage 3 only); the
    parameters: e P/N. From runtime/zero/stage_1_and_2.py and stage3.py of DeepSpeed 0.19.8; no run has confirmed it.
    """
    settings = case.settings
    if case.workload.device == "cpu" or case.zero_stage == 0:
        return 0
    found = 0
    if settings.optimizer_on_host:
        found += round((2 * FP32_BYTES + ADAM_MOMENT_BYTES) * case.partition * _share(case))
    if settings.parameters_on_host and case.zero_stage == 3:
        found += case.element_bytes * -(-case.shape.parameters // case.workload.world_size)
    return found


def on_device(case: Case, phases: Mapping[str, Counter[str]]) -> dict[str, Counter[str]]:
    """The phases without what is on the host.

    Gradients go there as they are reduced, at stage 1 for the update only. Where a term's place is not sure it is taken
    to be on the host, so that no candidate is pruned for it.
    """
    settings = case.settings
    if not host_bytes(case):
        return dict(phases)
    kept = {}
    for phase, terms in phases.items():
        left = Counter(terms)
        if settings.optimizer_on_host:
            gone = STATES | ({"gradients"} if phase == "step" or case.zero_stage > 1 else set())
            for term in gone & left.keys():
                left[term] = round(left[term] * (1 - _share(case)))
        if settings.parameters_on_host and case.zero_stage == 3:
            left.pop("parameters", None)
        kept[phase] = +left
    return kept


def _share(case: Case) -> float:
    return case.settings.optimizer_host_share if case.zero_stage == 3 else 1.0
