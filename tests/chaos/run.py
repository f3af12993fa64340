"""Injects faults into real worker groups and real sweeps and judges how they end; one JSON line.

make chaos                  all of them, about half an hour
make chaos ONLY=SIGKILL     those with this in their name
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from pathlib import Path

from processes import orphaned_shm_bytes
from run_ranks import Tally, run_rank_faults
from sweep_faults import SWEEP_FAULTS, SweepFault


def main() -> None:
    """Rank faults first, in one Ray; then a sweep for each of the others."""
    parser = argparse.ArgumentParser(description="Injects faults and judges how they end.")
    parser.add_argument("--only", default="", help="inject only faults with this in their name")
    wanted = parser.parse_args().only
    # A shell's background jobs ignore Ctrl-C and hand that down; the sweeps that are interrupted here must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tally = Tally()
    shm_before = orphaned_shm_bytes()
    run_rank_faults(tally, lambda name: wanted in name)
    for fault in SWEEP_FAULTS:
        name = fault.__name__.replace("_", " ")
        if wanted in name:
            with tempfile.TemporaryDirectory() as folder:
                began_s = time.monotonic()
                tally.note(name, _wrong_in(fault, Path(folder)), time.monotonic() - began_s)
    tally.shm_bytes_left = orphaned_shm_bytes() - shm_before
    print(json.dumps({"benchmark": "chaos", **tally.as_dict()}))
    if tally.right != tally.injected:
        raise SystemExit(1)


def _wrong_in(fault: SweepFault, folder: Path) -> str:
    """What was wrong; a fault that could not be injected is not right either."""
    try:
        return fault(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
