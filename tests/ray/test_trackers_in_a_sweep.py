"""Experiment trackers in a real sweep, with nothing sent anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import run, trials, write_sweep
from test_serve import IN_PROCESS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_each_candidate_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    pytest.importorskip({"tensorboard": "tensorboardX"}.get(tracker, tracker))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    sections = {
        "tensorboard": True,
        "mlflow": {"tracking_uri": f"file:{tmp_path}/runs"},
        "wandb": {"mode": "offline"},
    }
    search = {"method": "random", "trials": 2, "confirm": False}
    path = write_sweep(tmp_path, **IN_PROCESS | {"search": search}, trackers={tracker: sections[tracker]})
    exit_code, output = run(path, timeout_s=380)
    assert exit_code == 5 and "left out" not in output, output
    measured = {row["candidate_id"] for row in trials(tmp_path) if row["status"] == "COMPLETED"}
    folder = tmp_path / "results/trackers" / tracker
    if tracker == "mlflow":
        texts = [file.read_text() for file in (tmp_path / "runs").rglob("params/candidate_id")]
        assert set(texts) == measured
        return
    pattern = "events.out.tfevents.*" if tracker == "tensorboard" else "wandb/offline-run-*/*.wandb"
    assert {file.relative_to(folder).parts[0] for file in folder.rglob(pattern)} == measured
