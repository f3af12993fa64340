"""Seeds derived from seeds."""

from __future__ import annotations

import random


def mix(seed: int, number: int) -> int:
    """A seed of its own for each pair, so that neighbours do not share a stream."""
    return random.Random(f"{seed}/{number}").getrandbits(63)
