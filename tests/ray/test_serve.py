"""The report of a sweep under way, as a browser would ask for it."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest
from sweeps import start, write_sweep

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
SHOWN_WITHIN_S = 5.0
IN_PROCESS = {
    "workers": {"count": 1, "resources_per_worker": {"CPU": 0.5}},
    "space": {"zero_stage": [0, 1], "activation_checkpoint_interval": [0], "micro_batch_size_per_gpu": [1, 2, 4]},
    "search": {"method": "random", "trials": 4, "confirm": False},
    "launcher": "in_process",
}


def _read(url: str) -> str:
    """The page; empty where the server goes down under it, as it does with the driver."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_a_trial_shows_while_the_sweep_runs(tmp_path: Path) -> None:
    run = start(write_sweep(tmp_path, **IN_PROCESS), "--serve", "0")
    shown: dict[str, float] = {}
    told: dict[str, float] = {}
    url = ""
    while run.poll() is None:
        url = url or (re.findall(r"report while it runs: (\S+)", run.output()) or [""])[0]
        for candidate in re.findall(r"\d+/4\s+(\S+)\s+[\d.]+ samples/s", run.output()):
            told.setdefault(candidate, time.monotonic())
        page = _read(url) if url and told else ""
        for candidate in re.findall(r'<tr data-status="COMPLETED"[^>]*><td class="c">([^<]+)</td>', page):
            shown.setdefault(candidate, time.monotonic())
        time.sleep(0.1)
    assert run.returncode == 5, run.output()
    assert url.startswith("http://127.0.0.1:")
    # The last one is told as the driver, and with it the server, comes to its end.
    seen = [shown[candidate] - told[candidate] for candidate in told if candidate in shown]
    assert len(seen) >= 2 and max(seen) < SHOWN_WITHIN_S
