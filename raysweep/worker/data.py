"""Deterministic batches: equal seed and global batch give every candidate the same samples, however split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from raysweep.text_files import BYTE_VALUES, TEXT_LIMIT_BYTES, samples_in, text_files
from raysweep.trial import LaunchRequest
from raysweep.worker.birth import DTYPES
from raysweep.worker.heads import Head, next_tokens
from raysweep.worker.seeds import mix


class Batches(Protocol):
    """A rank's micro-batches without end, on the CPU, floats in the training dtype."""

    in_memory_pass: bool
    """Set while memory is weighed: a source may then give its largest batches."""

    @property
    def has_worst_case(self) -> bool:
        """Whether it does; later losses then say nothing about training."""
        ...

    @property
    def has_cycled(self) -> bool:
        """Whether samples have come a second time."""
        ...

    def __next__(self) -> dict[str, Tensor]:
        """The next micro-batch."""
        ...


class MicroBatches:
    """Micro-batches made of samples by index, shaped by a head.

    Step s holds the samples s * G ... s * G + G - 1 of a global batch of G; see `sample_indices`.
    """

    has_worst_case = False

    def __init__(self, corpus: Corpus, request: LaunchRequest, rank: int, *, head: Head = next_tokens) -> None:
        self.in_memory_pass = False
        self._corpus = corpus
        self._request = request
        self._rank = rank
        self._head = head
        self._micro_step = 0

    @property
    def has_cycled(self) -> bool:
        """Whether all ranks together have taken more samples than there are."""
        samples = self._corpus.sample_count()
        taken = self._micro_step * self._request.workload.world_size * self._request.candidate.micro_batch_size_per_gpu
        return samples is not None and taken > samples

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self

    def __next__(self) -> dict[str, Tensor]:
        indices = sample_indices(
            self._micro_step,
            micro_batch_size=self._request.candidate.micro_batch_size_per_gpu,
            rank=self._rank,
            world_size=self._request.workload.world_size,
        )
        self._micro_step += 1
        samples = torch.stack([self._corpus.sample(index) for index in indices])
        return cast_floats(self._head(samples, indices), DTYPES[self._request.workload.precision])


def sample_indices(micro_step: int, *, micro_batch_size: int, rank: int, world_size: int) -> range:
    """Indices of the samples that a rank takes in a micro-step, counted from the start of training.

    Micro-step m on rank r takes (m * world_size + r) * micro_batch_size onward. A step of the same global batch then
    holds the same samples however it is split: steps follow each other without a gap.
    """
    first = (micro_step * world_size + rank) * micro_batch_size
    return range(first, first + micro_batch_size)


def cast_floats(batch: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The batch with floating tensors in `dtype`, which the weights have."""
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in batch.items()}


class Corpus(Protocol):
    """Samples by index, without end."""

    def sample(self, index: int) -> Tensor:
        """Sample `index`: [sequence_length + 1] tokens of int64, or an image as [channels, height, width]."""
        ...

    def sample_count(self) -> int | None:
        """Samples before one repeats; None where none does."""
        ...


def open_corpus(data: Mapping[str, Any], *, sequence_length: int, vocab_size: int, seed: int) -> Corpus:
    """The corpus of a workload's data section.

    Raises:
        FileNotFoundError: when the text has no file.
    """
    if data["kind"] == "synthetic":
        return SyntheticCorpus(sequence_length=sequence_length, vocab_size=vocab_size, seed=seed)
    assert data["kind"] == "text" and vocab_size >= BYTE_VALUES, (data, vocab_size)
    return TextCorpus(tokens=read_text(data["path"]), sequence_length=sequence_length, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticCorpus:
    """Uniform random tokens, drawn for each sample from its own seed."""

    sequence_length: int
    vocab_size: int
    seed: int

    def sample(self, index: int) -> Tensor:
        """Sample `index` as [sequence_length + 1] tokens, int64."""
        generator = torch.Generator().manual_seed(mix(self.seed, index))
        return torch.randint(0, self.vocab_size, (self.sequence_length + 1,), generator=generator)

    def sample_count(self) -> int | None:
        """None: random samples do not run out."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCorpus:
    """Windows of `sequence_length` bytes of a text, visited in an order shuffled anew in each epoch."""

    tokens: bytes
    """Kept out of tensors: the text lies in host memory, and is none of the device's."""
    sequence_length: int
    seed: int

    def __post_init__(self) -> None:
        assert self.sample_count() > 0, f"{len(self.tokens)} bytes hold no sample of {self.sequence_length} tokens"

    def sample(self, index: int) -> Tensor:
        """Sample `index` as [sequence_length + 1] tokens, int64."""
        epoch, position = divmod(index, self.sample_count())
        offset = _shuffled(position, self.sample_count(), mix(self.seed, epoch)) * self.sequence_length
        window = self.tokens[offset : offset + self.sequence_length + 1]
        return torch.frombuffer(bytearray(window), dtype=torch.uint8).long()

    def sample_count(self) -> int:
        """Windows that do not overlap, each with the token after it."""
        return samples_in(len(self.tokens), sequence_length=self.sequence_length)


def read_text(path: str) -> bytes:
    """Bytes of a file, folder, glob, or of the standard library (`stdlib`); at most TEXT_LIMIT_BYTES.

    Raises:
        FileNotFoundError: when nothing matches.
    """
    content = bytearray()
    for file in text_files(path):
        with file.open("rb") as stream:
            content += stream.read(TEXT_LIMIT_BYTES - len(content))
        if len(content) >= TEXT_LIMIT_BYTES:
            break
    if not content:
        raise FileNotFoundError(f"data.path {path!r} matches no file with content")
    return bytes(content)


def _shuffled(position: int, count: int, seed: int) -> int:
    """Where `position` lands in a fixed permutation of `range(count)`, without holding the permutation.

    A four-round Feistel network over the next even power of two, walked until it lands inside the range.
    """
    half_bits = max(1, (count - 1).bit_length() + 1 >> 1)
    mask = (1 << half_bits) - 1
    while True:
        left, right = position >> half_bits, position & mask
        for turn in range(4):
            left, right = right, left ^ (mix(seed + turn, right) & mask)
        position = left << half_bits | right
        if position < count:
            return position
