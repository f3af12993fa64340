"""Axes of the search, and the candidates that they admit under a fixed or a free global batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysweep.candidate import Candidate
from raysweep.constraint import HPZ_KEY, OFFLOAD_KEY, holds, names_of
from raysweep.errors import ConfigError
from raysweep.workload import accumulation_for, legal_splits, nearest_global_batches

WARM_KEYS = frozenset(
    {
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.overlap_comm",
    }
)
"""DeepSpeed keys that may differ between candidates of one warm process, beside stage, interval and batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What of a candidate is neither ZeRO nor batch: its attention, compiled or not, and its number of workers."""

    attn_implementation: str | None = None
    torch_compile: bool = False
    world_size: int | None = None
    """None: all of the sweep's, as in `Candidate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The choices of each axis. Every combination is a candidate."""

    zero_stage: tuple[int, ...]
    activation_checkpoint_interval: tuple[int, ...]
    micro_batch_size_per_gpu: tuple[int, ...]
    gradient_accumulation_steps: tuple[int, ...] = (1,)
    """Used where the global batch is free; a fixed one decides the accumulation."""
    offload_optimizer: tuple[str, ...] = ("none",)
    """Where the optimizer's states live, of none (the device) and cpu; stage 0 has no such choice."""
    zero_hpz_partition_size: tuple[int, ...] = (1,)
    """Workers over which stage 3 keeps a second copy of its parameters (ZeRO++'s hpZ); 1 is none."""
    attn_implementation: tuple[str | None, ...] = (None,)
    """Attention of a transformers model; None is the one of the model section."""
    torch_compile: tuple[bool, ...] = (False,)
    world_size: tuple[int | None, ...] = (None,)
    """Workers that train a candidate; None is all of the sweep's."""
    deepspeed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Further axes: DeepSpeed keys by dotted path."""
    constraints: tuple[str, ...] = ()
    """Expressions over the axes; what breaks one is no candidate."""

    def candidates(self, *, global_batch_size: int | None, world_size: int) -> Iterator[tuple[Candidate, bool]]:
        """Every candidate that keeps the constraints, with whether its batch is legal.

        Where a fixed global batch cannot be split, the candidate carries accumulation 1 and is not legal.

        Raises:
            ConfigError: for a constraint that cannot be evaluated.
        """
        for program in self.programs(world_size):
            workers = program.world_size or world_size
            further = {stage: self.further_choices(stage, program, world_size=workers) for stage in self.zero_stage}
            for stage, interval, micro_batch in itertools.product(
                self.zero_stage, self.activation_checkpoint_interval, self.micro_batch_size_per_gpu
            ):
                accumulations = self.accumulations(micro_batch, global_batch_size=global_batch_size, world_size=workers)
                for deepspeed, accumulation in itertools.product(further[stage], accumulations):
                    candidate = Candidate(
                        zero_stage=stage,
                        activation_checkpoint_interval=interval,
                        micro_batch_size_per_gpu=micro_batch,
                        gradient_accumulation_steps=accumulation or 1,
                        deepspeed=deepspeed,
                        attn_implementation=program.attn_implementation,
                        torch_compile=program.torch_compile,
                        world_size=program.world_size,
                    )
                    if self.keeps(candidate, global_batch_size=global_batch_size, world_size=world_size):
                        yield candidate, accumulation is not None

    def keeps(self, candidate: Candidate, *, global_batch_size: int | None, world_size: int) -> bool:
        """Whether a candidate keeps the constraints.

        Args:
            candidate: one of the space.
            global_batch_size: None where it is free.
            world_size: workers of a candidate that has no number of its own.

        Raises:
            ConfigError: for a constraint that cannot be evaluated.
        """
        if not self.constraints:
            return True
        workers = candidate.world_size or world_size
        samples = candidate.micro_batch_size_per_gpu * candidate.gradient_accumulation_steps * workers
        names = names_of(
            candidate, world_size=workers, global_batch_size=global_batch_size or samples, axes=self.deepspeed
        )
        return all(holds(expression, names) for expression in self.constraints)

    def programs(self, world_size: int) -> list[Program]:
        """Every combination of attention, compiled or not, and number of workers.

        All workers of the sweep are the default, which is left out of a candidate.
        """
        own_sizes = [None if size == world_size else size for size in self.world_size]
        return [
            Program(attn_implementation=attention, torch_compile=is_compiled, world_size=size)
            for attention, is_compiled, size in itertools.product(
                self.attn_implementation, self.torch_compile, own_sizes
            )
        ]

    def further_choices(self, zero_stage: int, program: Program, *, world_size: int) -> list[dict[str, Any]]:
        """Every combination of the further axes that a stage has, as DeepSpeed keys with their values.

        Args:
            zero_stage: the stage.
            program: of the candidates.
            world_size: workers that train one.
        """
        if program.torch_compile and zero_stage == 3:
            return []  # its hooks around every module would break a block into pieces, compiled one by one
        further = [[(key, value) for value in values] for key, values in sorted(self.deepspeed.items())]
        found = []
        for offload, hpz, *rest in itertools.product(self.offload_optimizer, self.zero_hpz_partition_size, *further):
            named = {
                OFFLOAD_KEY: (offload, "none", zero_stage > 0),
                HPZ_KEY: (hpz, 1, zero_stage == 3 and world_size % hpz == 0),
            }
            if any(value != default and not applies for value, default, applies in named.values()):
                continue  # DeepSpeed has no such choice at this stage: it would be another name for the default
            # A default is left out, so that the candidate has the id that it has without the axis.
            chosen = {key: value for key, (value, default, _) in named.items() if value != default}
            found.append(dict(rest) | chosen)
        return found

    def accumulations(
        self, micro_batch: int, *, global_batch_size: int | None, world_size: int
    ) -> tuple[int | None, ...]:
        """Those of the axis; under a fixed global batch the one that gives it, or None where none does."""
        if global_batch_size is None:
            return self.gradient_accumulation_steps
        return (accumulation_for(global_batch_size, micro_batch, world_size),)

    def check(self, *, global_batch_size: int | None, world_size: int) -> None:
        """Refuse a space that has no candidate, or one whose axes the workers cannot have.

        Raises:
            ConfigError: naming the axis or the constraints.
        """
        self._check_world_sizes(global_batch_size, world_size)
        for size in self.zero_hpz_partition_size:
            if world_size % size:
                divisors = [each for each in range(1, world_size + 1) if world_size % each == 0]
                raise ConfigError(
                    key="space.zero_hpz_partition_size",
                    value=size,
                    rule=f"must divide the {world_size} workers",
                    nearest=str(min(divisors, key=lambda each: abs(each - size))),
                )
        if next(self.candidates(global_batch_size=global_batch_size, world_size=world_size), None) is None:
            rule = "leave no candidate" if self.constraints else "no stage of the space has the choices that are named"
            key = "space.constraints" if self.constraints else "space"
            raise ConfigError(key=key, value=list(self.constraints), rule=rule)

    def _check_world_sizes(self, global_batch_size: int | None, world_size: int) -> None:
        """One number of workers that can share the batch is enough: at the others candidates are skipped."""
        sizes = [size or world_size for size in self.world_size]
        if max(sizes) > world_size:
            rule = f"workers.count is {world_size}, and no candidate can have more workers"
            raise ConfigError(key="space.world_size", value=max(sizes), rule=rule, nearest=str(world_size))
        errors = []
        for size in sorted(sizes, reverse=True):
            try:
                return self.check_global_batch(global_batch_size=global_batch_size, world_size=size)
            except ConfigError as error:
                errors.append(error)
        raise errors[0]

    def check_global_batch(self, *, global_batch_size: int | None, world_size: int) -> None:
        """Refuse a fixed global batch that no micro-batch of the space can give.

        Raises:
            ConfigError: naming the legal micro-batches, or the nearest totals that the workers can share.
        """
        if global_batch_size is None:
            return
        legal = legal_splits(global_batch_size, world_size)
        if any(micro in self.micro_batch_size_per_gpu for micro, _ in legal):
            return
        if legal:
            pairs = ", ".join(f"{micro} x {accumulation}" for micro, accumulation in legal[:12])
            raise ConfigError(
                key="space.micro_batch_size_per_gpu",
                value=list(self.micro_batch_size_per_gpu),
                rule=f"none gives global_batch_size {global_batch_size} on {world_size} workers; "
                f"legal micro-batch x accumulation: {pairs}",
            )
        totals = nearest_global_batches(global_batch_size, world_size)
        splits = "; ".join(
            f"{total} = " + ", ".join(f"{m} x {a} x {world_size}" for m, a in legal_splits(total, world_size)[:4])
            for total in totals
        )
        raise ConfigError(
            key="global_batch_size",
            value=global_batch_size,
            rule=f"{world_size} workers cannot share it equally (micro-batch x accumulation x workers: {splits})",
            nearest=" or ".join(str(total) for total in totals),
        )


def group_key(candidate: Candidate) -> tuple[tuple[str, str], ...]:
    """What two candidates must have in common to share a warm process: their axes that are not on the allow-list."""
    return tuple((key, repr(value)) for key, value in sorted(candidate.further_axes.items()) if key not in WARM_KEYS)
