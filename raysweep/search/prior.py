"""The rates that a step-time model starts from: assumed ones of the device type, or those of micro-benchmarks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, fields, replace

import numpy as np

from raysweep.probe import Probe, alpha_beta
from raysweep.step_work import StepWork

ASSUMED_RATES = {
    "cpu": StepWork(
        compute_flops=5e10,
        recompute_flops=5e10,
        block_passes=1e3,
        reduce_bytes=1e9,
        gather_bytes=1e9,
        collectives=5e3,
        gather_calls=6e2,
        gradient_hooks=2.2e3,
        micro_steps=3e3,
        optimizer_bytes=3e9,
        offload_bytes=3e9,
        steps=2e2,
    ),
    "cuda": StepWork(
        compute_flops=1.5e14,
        recompute_flops=1.5e14,
        block_passes=1.5e3,
        reduce_bytes=5e10,
        gather_bytes=1e11,
        collectives=2e4,
        gather_calls=1e4,
        gradient_hooks=2e4,
        micro_steps=1e3,
        optimizer_bytes=1e12,
        offload_bytes=2e10,
        steps=5e2,
    ),
}
"""Device type -> units of each kind of work that a rank does in a second, before anything ran.

Only their proportions matter, because measurements set the scale of all of them; and those are held loosely. The CPU
figures of passes, hooks and micro-steps are near what fits of whole recorded grids (`benchmarks/data/`) gave. The CUDA
figures are of a current accelerator by its data sheet and have not been compared with a run.
"""
REACHED_SHARE = 0.4
"""Of the rates of a benchmark that does one thing only, which training reaches: its kernels are smaller and differ."""
REDUCED_SHARE = 1 / 3
"""The same of all-reduced bytes: in the recorded grids of two and four workers they were three times dearer. In
training they are copied into buckets and divided, too."""


def rates(device: str, probes: Collection[Probe], *, world_size: int) -> StepWork:
    """The rates before a candidate has run: of the probes, as their geometric mean, where there are any.

    A group of one worker has no links, so it counts only where no other group does.
    """
    assumed = ASSUMED_RATES[device]
    probes = [probe for probe in probes if probe.all_reduce_s] or probes
    if not probes:
        return assumed
    logs = [np.log(astuple(_of_probe(assumed, probe, world_size))) for probe in probes]
    names = [field.name for field in fields(StepWork)]
    return StepWork(**dict(zip(names, np.exp(np.mean(logs, axis=0)).tolist(), strict=True)))


def _of_probe(assumed: StepWork, probe: Probe, world_size: int) -> StepWork:
    measured = replace(
        assumed,
        compute_flops=REACHED_SHARE * probe.flop_per_s,
        recompute_flops=REACHED_SHARE * probe.flop_per_s,
        optimizer_bytes=REACHED_SHARE * probe.memory_bytes_per_s,
    )
    if not probe.all_reduce_s or not probe.all_gather_s:
        return measured
    # By ring a rank sends 2 (N-1)/N of what is reduced, and (N-1)/N of what is gathered.
    share = (world_size - 1) / world_size
    reduce_call_s, reduce_byte_s = alpha_beta(probe.all_reduce_s)
    gather_call_s, gather_byte_s = alpha_beta(probe.all_gather_s)
    return replace(
        measured,
        reduce_bytes=REDUCED_SHARE * 2 * share / _some(reduce_byte_s, assumed.reduce_bytes),
        gather_bytes=share / _some(gather_byte_s, assumed.gather_bytes),
        collectives=1 / _some(reduce_call_s, assumed.collectives),
        # A hook of stage 3 works in Python, too; only what its collective takes longer is known.
        gather_calls=1 / (1 / assumed.gather_calls + gather_call_s),
    )


def _some(seconds: float, assumed_rate: float) -> float:
    """A time that was measured; where it vanished beside the others, a hundredth of the assumed one."""
    return max(seconds, 0.01 / assumed_rate)
