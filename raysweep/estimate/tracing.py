"""Traces the candidates of a sweep before anything runs: side by side, from a cache, a few of each family."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from raysweep.budget import MeasurementWindow
from raysweep.candidate import Candidate
from raysweep.ds_config import render
from raysweep.estimate.trace_cache import read_trace, trace_file, write_trace
from raysweep.estimate.trace_family import TracedFamily
from raysweep.estimate.trace_fidelity import fidelity_of
from raysweep.estimate.trace_self_test import self_test
from raysweep.estimate.trace_server import TraceServer, TraceServerDied
from raysweep.fidelity import Fidelity, corrected
from raysweep.memory import MemoryEstimate, ZeroSettings
from raysweep.model_schema import LOOP_KINDS
from raysweep.offload import host_bytes
from raysweep.sweep_file import Sweep
from raysweep.trace import RankTrace, TraceJob
from raysweep.trace_estimate import Terms, estimate_from, without_host
from raysweep.trace_families import TRACED_ACCUMULATION, families, family_key
from raysweep.trial import LaunchRequest
from raysweep.workload import Workload
from raysweep.zero_terms import FP32_BYTES, Case

STEPS = 2
"""Steps of a trace: the first makes the optimizer's state, the second is the steady one, without a run's noise."""
STEPS_AT_STAGE_3 = 3
"""Stage 3 records the order of its modules in the first micro-step, and fetches ahead by it from the second on: where
there is accumulation, two steps hold enough of them."""

Progress = Callable[[int, int], None]
"""Told how many traces are done, and how many are known to be needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What the traces of a sweep say."""

    estimates: Mapping[str, MemoryEstimate] = field(default_factory=dict)
    """candidate_id -> predicted memory; the closed form stands for candidates that are missing."""
    ranks: Mapping[str, Sequence[RankTrace]] = field(default_factory=dict)
    """candidate_id -> the traces of its ranks, for candidates that were traced themselves."""
    notes: tuple[str, ...] = ()
    """What could not be traced, and which answers were guessed."""


def trace_sweep(sweep: Sweep, candidates: Iterable[Candidate], *, progress: Progress) -> Traces:
    """Trace candidates of a sweep on the cores that there are.

    Where the start-up test fails nothing is traced, and a note says so. It is no error: the closed form remains.
    """
    kind = sweep.workload.model["kind"]
    if kind in LOOP_KINDS:
        return Traces(notes=(f"not traced: a model of kind {kind} builds its engine in a loop of its own",))
    wanted = [each for each in candidates if not each.torch_compile]
    if not wanted:
        return Traces(notes=("not traced: what compiled blocks keep is the compiler's choice",))
    tracing = _Tracing(sweep, wanted, progress)
    try:
        with TraceServer(processes=_cores(), environment=sweep.workload.environment) as server:
            failure = self_test(server)
            if failure:
                return Traces(notes=(f"not traced, the closed form is used: {failure}",))
            tracing.fidelity = fidelity_of(server, sweep)
            tracing.run(server)
    except TraceServerDied as error:
        return Traces(notes=(f"not traced, the closed form is used: the tracing process ended ({error})",))
    return tracing.result()


def legal_candidates(sweep: Sweep) -> list[Candidate]:
    """The candidates of a sweep whose batch is legal."""
    workload = sweep.workload
    found = sweep.space.candidates(global_batch_size=workload.global_batch_size, world_size=workload.world_size)
    return [candidate for candidate, is_legal in found if is_legal]


def trace_job(sweep: Sweep, candidate: Candidate, *, rank: int) -> TraceJob:
    """The job of one rank of a candidate, as its launch would be, with an accumulation of at most 2."""
    accumulation = min(candidate.gradient_accumulation_steps, TRACED_ACCUMULATION)
    traced = replace(candidate, gradient_accumulation_steps=accumulation)
    needs_third_step = traced.zero_stage == 3 and accumulation == 1
    own = sweep.workload.of(traced)
    config = render(traced, workload=own, base=sweep.base_ds_config)
    workload = replace(own, shape=None, environment={}, global_batch_size=None)
    request = LaunchRequest(
        candidate=traced,
        workload=workload,
        ds_config=_without_cuda_kernels(config, workload),
        window=MeasurementWindow(memory_pass_steps=STEPS_AT_STAGE_3 if needs_third_step else STEPS),
    )
    return TraceJob(request=request, rank=rank)


def _without_cuda_kernels(config: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """The config with torch's Adam, which runs on the CPU, in place of DeepSpeed's, which is compiled for CUDA."""
    optimizer = config["optimizer"]
    if config["zero_optimization"].get("offload_optimizer"):
        # Else DeepSpeed insists on its compiled CPU Adam, whose states and masters are those of torch's.
        config["zero_force_ds_cpu_optimizer"] = False
    if workload.device == "cuda" and optimizer["type"].lower() in ("adam", "adamw"):
        optimizer["params"] = {**optimizer.get("params", {}), "torch_adam": True}
    return config


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class _Tracing:
    """The families of a sweep, traced in rounds until every member is known."""

    def __init__(self, sweep: Sweep, candidates: Sequence[Candidate], progress: Progress) -> None:
        self._sweep = sweep
        self._candidates = candidates
        self._progress = progress
        examples = {family_key(candidate): candidate for candidate in candidates}
        self._families = {key: TracedFamily(examples[key], members) for key, members in families(candidates).items()}
        self._done = 0
        self.fidelity = Fidelity()

    def run(self, server: TraceServer) -> None:
        while True:
            wanted = [(family, *each) for family in self._families.values() for each in family.wanted()]
            if not wanted:
                return
            jobs = [trace_job(self._sweep, candidate, rank=rank) for _, candidate, rank in wanted]
            files = [trace_file(job) for job in jobs]
            cached = {index: trace for index, file in enumerate(files) if (trace := read_trace(file)) is not None}
            missing = [index for index in range(len(jobs)) if index not in cached]
            fresh = server.trace([jobs[index] for index in missing]) if missing else iter(())
            for index, trace in chain(cached.items(), ((missing[place], trace) for place, trace in fresh)):
                family, candidate, _ = wanted[index]
                family.add(candidate.micro_batch_size_per_gpu, trace)
                if index in missing:
                    write_trace(files[index], trace)
                self._done += 1
                self._progress(self._done, self._needed())

    def _needed(self) -> int:
        left = sum(len(family.wanted()) for family in self._families.values())
        return self._done + left

    def result(self) -> Traces:
        """Estimates of all candidates of families that could be traced."""
        estimates, ranks = {}, {}
        device = self._sweep.workload.device
        for candidate in self._candidates:
            family = self._families[family_key(candidate)]
            if family.error:
                continue
            if self._offloads_at_stage_3(candidate):
                continue
            micro_batch = candidate.micro_batch_size_per_gpu
            terms, is_interpolated = family.terms(micro_batch, device=device)
            known = [trace for traces in family.traces.values() for trace in traces.values()]
            on_device, on_host = self._on_device(candidate, corrected(terms, self.fidelity))
            estimates[candidate.candidate_id] = estimate_from(
                on_device,
                host_bytes=on_host,
                device=device,
                is_interpolated=is_interpolated,
                is_doubtful=bool(self.fidelity.parts_at) or any(trace.warnings for trace in known),
            )
            if not is_interpolated:
                ranks[candidate.candidate_id] = tuple(family.traces[micro_batch].values())
        return Traces(estimates=estimates, ranks=ranks, notes=self._notes(len(estimates)))

    def _settings(self, candidate: Candidate) -> ZeroSettings:
        config = render(candidate, workload=self._sweep.workload.of(candidate), base=self._sweep.base_ds_config)
        return ZeroSettings.from_ds_config(config)

    def _offloads_at_stage_3(self, candidate: Candidate) -> bool:
        """Stage 3 builds host buffers among its parameters, where a trace cannot tell them apart."""
        settings, is_on_gpu = self._settings(candidate), self._sweep.workload.device == "cuda"
        return is_on_gpu and candidate.zero_stage == 3 and (settings.optimizer_on_host or settings.parameters_on_host)

    def _on_device(self, candidate: Candidate, terms: Terms) -> tuple[Terms, int]:
        """The terms less what is offloaded to the host, and that."""
        workload = self._sweep.workload.of(candidate)
        settings = self._settings(candidate)
        if workload.shape is None or not settings.optimizer_on_host:
            return terms, 0
        case = Case(candidate=candidate, workload=workload, settings=settings, shape=workload.shape)
        on_host = host_bytes(case)
        return (without_host(terms, master_bytes=FP32_BYTES * case.partition), on_host) if on_host else (terms, 0)

    def _notes(self, traced: int) -> tuple[str, ...]:
        families = self._families.values()
        notes = [f"memory of {traced} of {len(self._candidates)} candidates by {self._done} fake engine traces"]
        if self._sweep.workload.device == "cuda":
            notes.append(
                "traces are made on the CPU and unconfirmed on this GPU: only what is above 1.25 x budget is pruned"
            )
        if self.fidelity.parts_at:
            notes.append(f"a trace parts from a run of a tiny step, and was corrected by it: {self.fidelity.parts_at}")
        if self.fidelity.unknown:
            notes.append(f"traces were not compared with a run of a tiny step: {self.fidelity.unknown}")
        errors = dict.fromkeys(family.error for family in families if family.error)
        notes += [f"not traced, the closed form is used: {error}" for error in errors]
        guessed = dict.fromkeys(
            f"{warning.operator} at {warning.place}"
            for family in families
            for ranks in family.traces.values()
            for trace in ranks.values()
            for warning in trace.warnings
        )
        notes += [f"the trace made up a number that the model's code asked for: {each}" for each in guessed]
        return tuple(notes)
