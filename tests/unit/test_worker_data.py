"""Batches: the same samples for the same step, whatever the split."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from worker_builders import STANDARD_LIBRARY, request_for

from raysweep.worker.data import TEXT_LIMIT_BYTES, MicroBatches, SyntheticCorpus, TextCorpus, open_corpus, read_text


def samples_of_steps(*, micro_batch: int, accumulation: int, world_size: int, steps: int) -> list[set[tuple[int, ...]]]:
    """The samples of each optimizer step, over all ranks."""
    request = request_for(0, micro_batch=micro_batch, accumulation=accumulation, world_size=world_size)
    corpus = SyntheticCorpus(sequence_length=16, vocab_size=256, seed=0)
    found: list[set[tuple[int, ...]]] = [set() for _ in range(steps)]
    for rank in range(world_size):
        batches = islice(MicroBatches(corpus, request, rank), steps * accumulation)
        for micro_step, batch in enumerate(batches):
            assert batch["input_ids"].shape == (micro_batch, 16)
            found[micro_step // accumulation] |= {tuple(row.tolist()) for row in batch["input_ids"]}
    return found


@pytest.mark.parametrize(("micro_batch", "accumulation", "world_size"), [(2, 2, 2), (1, 8, 1), (4, 1, 2), (1, 1, 8)])
def test_equal_global_batch_means_equal_samples(micro_batch: int, accumulation: int, world_size: int) -> None:
    whole = samples_of_steps(micro_batch=8, accumulation=1, world_size=1, steps=3)
    split = samples_of_steps(micro_batch=micro_batch, accumulation=accumulation, world_size=world_size, steps=3)
    assert split == whole
    assert len(set.union(*whole)) == 24


def test_labels_are_the_next_tokens_of_the_text() -> None:
    text = TextCorpus(tokens=bytes(range(100)), sequence_length=16, seed=0)
    batch = next(MicroBatches(text, request_for(0), 0))
    assert torch.equal(batch["labels"], batch["input_ids"] + 1)
    assert batch["labels"].dtype == torch.int64


def test_every_window_comes_once_before_one_repeats() -> None:
    text = TextCorpus(tokens=bytes(range(33)), sequence_length=4, seed=3)
    starts = [int(text.sample(index)[0]) for index in range(16)]
    assert text.sample_count() == 8
    assert sorted(starts[:8]) == sorted(starts[8:]) == list(range(0, 32, 4))
    assert starts[:8] != starts[8:]


def test_seeds_give_other_samples() -> None:
    first, other = (open_corpus(STANDARD_LIBRARY, sequence_length=16, vocab_size=256, seed=seed) for seed in (0, 1))
    assert torch.equal(first.sample(5), first.sample(5))
    assert not torch.equal(first.sample(5), other.sample(5))


def test_standard_library_is_read_up_to_the_limit() -> None:
    text = read_text("stdlib")
    assert 1_000_000 < len(text) <= TEXT_LIMIT_BYTES
    assert b"import" in text[:10_000]


def test_file_folder_and_glob_read_the_same(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"world")
    (tmp_path / "a.txt").write_bytes(b"hello ")
    for path in (tmp_path, tmp_path / "*.txt"):
        assert read_text(str(path)) == b"hello world"
    assert read_text(str(tmp_path / "b.txt")) == b"world"


def test_missing_text_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        read_text("/nowhere/*.txt")
