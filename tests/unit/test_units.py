"""Sizes, counts and durations as people write and read them."""

from __future__ import annotations

import pytest

from raysweep.units import GIB, format_bytes, format_seconds, gib, parse_bytes, whole_number


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("1.5GiB", 1_610_612_736),
        ("512 MB", 512_000_000),
        ("56MiB", 58_720_256),
        ("2 kib", 2048),
        ("5e8", 500_000_000),
        (".5TiB", 549_755_813_888),
        (5e8, 500_000_000),
        (7, 7),
    ],
)
def test_a_size_is_read(written: object, size_bytes: int) -> None:
    assert parse_bytes(written) == size_bytes


@pytest.mark.parametrize("written", ["1.5 gigs", "GiB", "", "1..5GiB", "-1GiB", "1e999GiB", True, None, 1.5])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_bytes(written)


@pytest.mark.parametrize(("written", "count"), [("5e8", 500_000_000), (8.0, 8), (10**30, 10**30), ("12", 12)])
def test_a_count_is_an_integer(written: object, count: int) -> None:
    assert whole_number(written) == count
    assert type(whole_number(written)) is int


@pytest.mark.parametrize("written", [2.5, "x", None, True, float("inf"), float("nan"), [1]])
def test_what_is_no_count_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="number"):
        whole_number(written)


def test_gib() -> None:
    assert gib(1.5 * GIB) == 1.5


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (56 * 2**20, "56.0 MiB"), (80 * GIB, "80.0 GiB")],
)
def test_bytes_for_people(size_bytes: float | None, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(None, "-"), (0.05, "50 ms"), (3.21, "3.2 s"), (250, "4 min 10 s"), (7500, "2 h 5 min")],
)
def test_seconds_for_people(duration_s: float | None, text: str) -> None:
    assert format_seconds(duration_s) == text
