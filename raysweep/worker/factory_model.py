"""Calls the user's own function for a model and its batches, and says what is wrong with what comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.trial import LaunchRequest
from raysweep.worker.birth import DTYPES
from raysweep.worker.data import cast_floats
from raysweep.worker.user_function import import_function

CONTRACT = "must return (model, batches) or (model, batches, worst_case_batch)"


class FactoryBlueprint:
    """The user's function, imported and not yet called.

    It returns `(model, batches)` or `(model, batches, worst_case_batch)`:

    - `model`: a module; `model(**batch)` gives the mean loss as a tensor, or an object that has it as `.loss`.
    - `batches(micro_batch_size=, rank=, world_size=, seed=)`: an iterable (a DataLoader, a generator) of dicts of
      tensors, whose first dimension is the micro-batch. It is asked anew when it ends. Equal training however the
      global batch is split needs samples by index: see `raysweep.worker.data.sample_indices`.
    - `worst_case_batch(micro_batch_size)`: the largest batch that can come, taken in the memory pass from its second
      step on, which is where the peak is read. `loss_at_step_5` is then not recorded.

    Raises:
        ConfigError: when the module has no such function.
        Exception: whatever the user's module raises on import.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        self.block_lists: Sequence[str] = model["block_lists"]
        self._key = f"model.factory {model['factory']}"
        self._kwargs: Mapping[str, Any] = model["kwargs"]
        self._function = import_function(model, "factory")
        self._batches: Any = None
        self._worst_case_batch: Any = None

    def build(self) -> nn.Module:
        """The user's model, on the default device and in the default dtype.

        Raises:
            ConfigError: when something else than agreed on comes.
        """
        made = self._function(**self._kwargs)
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise ConfigError(key=self._key, rule=f"{CONTRACT}; it returned {_described(made)}")
        module, self._batches, self._worst_case_batch = (*made, None)[:3]
        if not isinstance(module, nn.Module):
            raise ConfigError(key=self._key, rule=f"{CONTRACT}; model is {_described(module)}, and no torch module")
        for name, value in (("batches", self._batches), ("worst_case_batch", self._worst_case_batch)):
            if (value is not None and not callable(value)) or (name == "batches" and value is None):
                raise ConfigError(key=self._key, rule=f"{CONTRACT}; {name} is {_described(value)}, and no function")
        return module

    def batches(self, request: LaunchRequest, rank: int) -> LoaderBatches:
        """The user's batches for one rank; only after `build`."""
        assert self._batches is not None, "batches come with the model"
        return LoaderBatches(
            self._batches, request, rank, worst_case_batch=self._worst_case_batch, key=f"{self._key}: batches"
        )


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(item).__name__ for item in value)})"
    return f"a {type(value).__name__}"


class LoaderBatches:
    """Batches of the user's own loader, started again when it ends, floats in the training dtype."""

    def __init__(
        self,
        make_loader: Callable[..., Iterable[Any]],
        request: LaunchRequest,
        rank: int,
        *,
        worst_case_batch: Callable[[int], Any] | None,
        key: str,
    ) -> None:
        self.has_cycled = False
        self.in_memory_pass = False
        self._make_loader = make_loader
        self._request = request
        self._rank = rank
        self._worst_case_batch = worst_case_batch
        self._key = key
        self._taken = 0
        self._loader = self._start()

    @property
    def has_worst_case(self) -> bool:
        """Whether the memory pass has batches of its own."""
        return self._worst_case_batch is not None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self

    def __next__(self) -> dict[str, Tensor]:
        candidate = self._request.candidate
        self._taken += 1
        # The first step is the one of `first_loss`, and its peak is not read.
        if self.in_memory_pass and self._worst_case_batch and self._taken > candidate.gradient_accumulation_steps:
            batch = self._worst_case_batch(candidate.micro_batch_size_per_gpu)
        else:
            batch = self._next_of_loader()
        return cast_floats(batch, DTYPES[self._request.workload.precision])

    def _start(self) -> Iterator[Any]:
        return iter(
            self._make_loader(
                micro_batch_size=self._request.candidate.micro_batch_size_per_gpu,
                rank=self._rank,
                world_size=self._request.workload.world_size,
                seed=self._request.workload.seed,
            )
        )

    def _next_of_loader(self) -> dict[str, Tensor]:
        wanted = self._request.candidate.micro_batch_size_per_gpu
        batch = next(self._loader, None)
        # A loader may end with a smaller batch; counted as a full one it would flatter the speed.
        if self._taken > 1 and (batch is None or _rows(batch) not in (None, wanted)):
            self.has_cycled = True
            self._loader = self._start()
            batch = next(self._loader, None)
        if batch is None:
            raise ConfigError(key=self._key, rule="gave no batch")
        if _rows(batch) is None:
            raise ConfigError(key=self._key, rule=f"must give dicts of tensors; it gave {_described(batch)}")
        if _rows(batch) != wanted:
            rule = f"must give batches of micro_batch_size {wanted}; it gave one of {_rows(batch)}"
            raise ConfigError(key=self._key, rule=rule)
        found: dict[str, Tensor] = batch
        return found


def _rows(batch: Any) -> int | None:
    """First dimension of a batch; None where it is no dict of tensors."""
    is_batch = isinstance(batch, Mapping) and batch and all(isinstance(item, Tensor) for item in batch.values())
    return next(iter(batch.values())).shape[0] if is_batch else None
