"""The example of docs/python.md runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import write_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow]

AFTER = """
import sys
import torch
print(f"deepspeed loaded: {'deepspeed' in sys.modules}, CUDA initialised: {torch.cuda.is_initialized()}")
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_documented_example_runs_and_the_driver_loads_no_deepspeed_b46(tmp_path: Path) -> None:
    search = {"method": "grid", "confirm": False}
    path = write_sweep(tmp_path, search=search)
    example = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    script = tmp_path / "example.py"
    script.write_text(example[1] + AFTER)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "8 of 8 completed" in done.stdout
    assert "deepspeed loaded: False, CUDA initialised: False" in done.stdout
