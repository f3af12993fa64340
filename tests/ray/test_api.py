"""The example of docs/python.md runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import write_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow]

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_documented_example_runs(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, workers={"count": 1}, launcher="in_process")
    example = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    script = tmp_path / "example.py"
    script.write_text(example[1])
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "8 of 8 completed" in done.stdout
