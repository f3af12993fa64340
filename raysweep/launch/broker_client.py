"""The launcher that talks to a broker: used by the driver and, from their own processes, by Ray Tune's trials."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raysweep.clock import utc_now
from raysweep.errors import GroupCannotStart
from raysweep.launch.autopsy import examine, with_lost_nodes
from raysweep.launch.broker import call, find_broker
from raysweep.launch.cluster import lost_nodes
from raysweep.launch.reaper import autopsy_of, bring_log, node_answers
from raysweep.launch.records import measurement_of, read_answer
from raysweep.serde import from_dict, to_dict
from raysweep.space import group_key
from raysweep.trial import GroupEnd, LaunchRequest, Measurement
from raysweep.units import MIB, format_bytes

LEFT_BEHIND_LIMIT_BYTES = 8 * MIB
"""Tensor bytes that one candidate may leave in its process; past it the group is recycled."""


class BrokerClient:
    """A `Launcher` over a running broker and its warm worker group.

    Holds the handle that it is given: the broker lives as long as the handle that started it.

    Args:
        broker: the broker's actor handle.
        sweep_id: the sweep's.
        fresh: give every candidate a worker group of its own.
    """

    def __init__(self, broker: Any, *, sweep_id: str, fresh: bool) -> None:
        self._broker = broker
        self._sweep_id = sweep_id
        self._fresh = fresh

    @classmethod
    def connect(cls, sweep_id: str, *, fresh: bool) -> BrokerClient:
        """A client in another process than the driver's.

        Raises:
            ValueError: when the broker is not there.
        """
        return cls(find_broker(sweep_id), sweep_id=sweep_id, fresh=fresh)

    def launch(self, request: LaunchRequest) -> Measurement:
        """See `Launcher.launch`."""
        started_at = utc_now()
        begin = time.perf_counter()
        # A key that no other candidate has is shared with none.
        key = uuid.uuid4().hex if self._fresh else group_key(request.candidate)
        sequence = self._call("submit", to_dict(request), request.deadline_s, key)
        plain = None
        while plain is None:
            plain = self._call("result", sequence)
        if "cannot_start" in plain:
            lost = lost_nodes()
            also = f"; lost nodes: {', '.join(lost)}" if lost else ""
            raise GroupCannotStart(reason=plain["cannot_start"] + also)
        answer = read_answer(plain, started_at=started_at, wall_s=time.perf_counter() - begin)
        failures = with_lost_nodes(answer.failures, answer.ranks, partial(node_answers, self._sweep_id))
        failures = examine(failures, answer.ranks, partial(autopsy_of, self._sweep_id))
        measurement = measurement_of(request, replace(answer, failures=failures))
        self.keep_house(measurement)
        return measurement

    def keep_house(self, measurement: Measurement) -> None:
        """Recycle the group in which a candidate has left too much behind."""
        figures = measurement.figures
        if figures is not None and figures.left_behind_bytes > LEFT_BEHIND_LIMIT_BYTES:
            self.recycle(f"{measurement.candidate_id} left {format_bytes(figures.left_behind_bytes)} of tensors behind")

    def recycle(self, reason: str) -> None:
        """See `Launcher.recycle`."""
        self._call("end_group", reason)

    def group_ends(self) -> list[GroupEnd]:
        """See `Launcher.group_ends`."""
        return [from_dict(GroupEnd, plain) for plain in self._call("group_ends")]

    def waits_for(self) -> str:
        """See `Launcher.waits_for`."""
        return str(self._call("waits_for"))

    def bring_logs(self, measurement: Measurement, folder: Path) -> list[Path]:
        """See `Launcher.bring_logs`."""
        copies = [bring_log(self._sweep_id, failure, folder) for failure in measurement.failures]
        return [copy for copy in copies if copy is not None]

    def close(self, reason: str) -> None:
        """See `Launcher.close`."""
        self._call("close", reason)

    def _call(self, method: str, *arguments: Any) -> Any:
        return call(self._broker, method, *arguments)
