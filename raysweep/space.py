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
        for candidate, accumulation in self._unconstrained(global_batch_size, world_size):
            workers = candidate.world_size or world_size
            samples = candidate.micro_batch_size_per_gpu * candidate.gradient_accumulation_steps * workers
            names = names_of(
                candidate,
                world_size=workers,
                global_batch_size=global_batch_size or samples,
                axes=self.deepspeed,
            )
            if all(holds(expression, names) for expression in self.constraints):
                yield candidate, accumulation is not None

    def _unconstrained(self, global_batch_size: int | None, world_size: int) -> Iterator[tuple[Candidate, int | None]]:
        further = [[(key, value) for value in values] for key, values in sorted(self.deepspeed.items())]
        programs = itertools.product(self.attn_implementation, self.torch_compile, self._own_world_sizes(world_size))
        for (attention, is_compiled, own_size), stage, interval, micro_batch, offload, hpz, *rest in itertools.product(
            programs,
            self.zero_stage,
            self.activation_checkpoint_interval,
            self.micro_batch_size_per_gpu,
            self.offload_optimizer,
            self.zero_hpz_partition_size,
            *further,
        ):
            workers = own_size or world_size
            named = {
                OFFLOAD_KEY: (offload, "none", stage > 0),
                HPZ_KEY: (hpz, 1, stage == 3 and workers % hpz == 0),
            }
            if any(value != default and not applies for value, default, applies in named.values()):
                continue  # DeepSpeed has no such choice at this stage: it would be another name for the default
            if is_compiled and stage == 3:
                continue  # its hooks around every module would break a block into pieces, compiled one by one
            # A default is left out, so that the candidate has the id that it has without the axis.
            chosen = {key: value for key, (value, default, _) in named.items() if value != default}
            for accumulation in self._accumulations(micro_batch, global_batch_size, workers):
                candidate = Candidate(
                    zero_stage=stage,
                    activation_checkpoint_interval=interval,
                    micro_batch_size_per_gpu=micro_batch,
                    gradient_accumulation_steps=accumulation or 1,
                    deepspeed=dict(rest) | chosen,
                    attn_implementation=attention,
                    torch_compile=is_compiled,
                    world_size=own_size,
                )
                yield candidate, accumulation

    def _own_world_sizes(self, world_size: int) -> list[int | None]:
        """All workers of the sweep are the default, which is left out of a candidate."""
        return [None if size == world_size else size for size in self.world_size]

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

    def _accumulations(
        self, micro_batch: int, global_batch_size: int | None, world_size: int
    ) -> tuple[int | None, ...]:
        if global_batch_size is None:
            return self.gradient_accumulation_steps
        return (accumulation_for(global_batch_size, micro_batch, world_size),)

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
