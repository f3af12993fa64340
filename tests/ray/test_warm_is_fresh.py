"""What a candidate shows does not depend on what ran in its process before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweeps import measurements, run, write_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

SPACE = {
    "zero_stage": [0, 1, 2, 3],
    "activation_checkpoint_interval": [0, 1],
    "micro_batch_size_per_gpu": [1, 2],
}


def _launches(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    folder.mkdir()
    search = {"method": "random", "trials": 10, "seed": 1, "confirm": False}
    exit_code, output = run(write_sweep(folder, space=SPACE, search=search, **changes), timeout_s=580)
    assert exit_code == 5, output
    return measurements(folder)


def test_a_warm_group_measures_what_fresh_ones_do(tmp_path: Path) -> None:
    warm = _launches(tmp_path / "warm")
    fresh = _launches(tmp_path / "fresh", launcher="fresh")
    assert len({row["group_id"] for row in warm}) == 1
    assert len({row["group_id"] for row in fresh}) == len(fresh)
    shown = [
        {row["candidate_id"]: (row["peak_memory_bytes"], row["first_loss"], row["loss_at_step_5"]) for row in rows}
        for rows in (warm, fresh)
    ]
    assert shown[0] == shown[1]
    ids = "".join(shown[0])
    assert len(shown[0]) == 10 and all(part in ids for part in ("s0", "s1", "s2", "s3", "k0", "k1", "b1", "b2"))
    assert list(shown[0]) != sorted(shown[0])
