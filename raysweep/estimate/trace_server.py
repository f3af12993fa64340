"""Keeps the subprocess that traces: asks it for jobs, passes on what it answers, and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from raysweep.serde import from_dict, to_dict
from raysweep.trace import RankTrace, TraceJob

TRACE_TIMEOUT_S = 600
CLOSE_TIMEOUT_S = 10


class TraceServerDied(Exception):
    """The subprocess ended; the message is the last line that it wrote."""


class TraceServer:
    """A subprocess that has loaded torch and DeepSpeed and forks one process a job; used as a context."""

    def __init__(self, *, processes: int, environment: Mapping[str, str]) -> None:
        self._processes = processes
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment, "DS_ACCELERATOR": "cpu"}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> TraceServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "raysweep.estimate.trace_jobs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._environment,
        )
        return self

    def trace(self, jobs: Sequence[TraceJob], *, store: str | None = None) -> Iterator[tuple[int, RankTrace]]:
        """Each job's index and trace, as they end; with a `store` the jobs are run for real, as ranks that meet there.

        Raises:
            TraceServerDied: when the subprocess does.
        """
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None, "used as a context"
        asked: dict[str, Any] = {
            "jobs": [to_dict(job) for job in jobs],
            "processes": self._processes if store is None else len(jobs),
            "timeout_s": TRACE_TIMEOUT_S,
            "store": store,
        }
        try:
            print(json.dumps(asked), file=process.stdin, flush=True)
        except OSError:
            raise TraceServerDied(self._last_words()) from None
        for line in process.stdout:
            if not line.strip():
                return
            answer = json.loads(line)
            yield answer["index"], from_dict(RankTrace, answer["trace"])
        raise TraceServerDied(self._last_words())

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            if kind is not None:
                process.terminate()
            process.wait(timeout=CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._log.close()
