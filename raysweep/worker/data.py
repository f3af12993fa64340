"""Deterministic batches: equal seed and global batch give every candidate the same samples, however split."""

from __future__ import annotations

import glob
import itertools
import random
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from raysweep.trial import LaunchRequest

BYTE_VALUES = 256
TEXT_LIMIT_BYTES = 8 * 1024**2
"""Most text that is read: enough for any measured window, and small beside a model."""
STANDARD_LIBRARY = "stdlib"


def micro_batches(corpus: Corpus, request: LaunchRequest, rank: int) -> Iterator[dict[str, Tensor]]:
    """A rank's micro-batches without end: `input_ids` and `labels`, [micro-batch, sequence], int64, on the CPU.

    Step s holds the samples s * G ... s * G + G - 1 of a global batch of G. Micro-step m on rank r takes from them
    (m * world_size + r) * micro_batch onward, so a split moves samples between ranks and never changes the step.
    """
    candidate, world_size = request.candidate, request.workload.world_size
    per_rank = candidate.micro_batch_size_per_gpu
    for micro_step in itertools.count():
        # Steps follow each other without a gap, so the micro-step counted from the start says it all.
        first = (micro_step * world_size + rank) * per_rank
        tokens = torch.stack([corpus.sample(first + position) for position in range(per_rank)])
        yield {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


class Corpus(Protocol):
    """Samples by index, without end."""

    def sample(self, index: int) -> Tensor:
        """Sample `index` as [sequence_length + 1] tokens, int64."""
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
        generator = torch.Generator().manual_seed(_mix(self.seed, index))
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
        offset = _shuffled(position, self.sample_count(), _mix(self.seed, epoch)) * self.sequence_length
        window = self.tokens[offset : offset + self.sequence_length + 1]
        return torch.frombuffer(bytearray(window), dtype=torch.uint8).long()

    def sample_count(self) -> int:
        """Windows that do not overlap, each with the token after it: (bytes - 1) // sequence_length."""
        return (len(self.tokens) - 1) // self.sequence_length


def read_text(path: str) -> bytes:
    """Bytes of a file, folder, glob, or of the standard library (`stdlib`); at most TEXT_LIMIT_BYTES.

    Raises:
        FileNotFoundError: when nothing matches.
    """
    content = bytearray()
    for file in _files(path):
        with file.open("rb") as stream:
            content += stream.read(TEXT_LIMIT_BYTES - len(content))
        if len(content) >= TEXT_LIMIT_BYTES:
            break
    if not content:
        raise FileNotFoundError(f"data.path {path!r} matches no file with content")
    return bytes(content)


def _files(path: str) -> list[Path]:
    if path == STANDARD_LIBRARY:
        return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if Path(path).is_dir():
        return sorted(file for file in Path(path).rglob("*") if file.is_file())
    return sorted(Path(found) for found in glob.glob(path, recursive=True) if Path(found).is_file())


def _mix(seed: int, number: int) -> int:
    """A seed of its own for each pair, so that neighbours do not share a stream."""
    return random.Random(f"{seed}/{number}").getrandbits(63)


def _shuffled(position: int, count: int, seed: int) -> int:
    """Where `position` lands in a fixed permutation of `range(count)`, without holding the permutation.

    A four-round Feistel network over the next even power of two, walked until it lands inside the range.
    """
    half_bits = max(1, (count - 1).bit_length() + 1 >> 1)
    mask = (1 << half_bits) - 1
    while True:
        left, right = position >> half_bits, position & mask
        for turn in range(4):
            left, right = right, left ^ (_mix(seed + turn, right) & mask)
        position = left << half_bits | right
        if position < count:
            return position
