"""Trains a candidate in the user's own loop, and measures it as ours is measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from raysweep.errors import ConfigError
from raysweep.worker.device import MemoryGauge
from raysweep.worker.loop_meter import LoopMeter, WindowClosed
from raysweep.worker.meter import Following, clocking, weighing
from raysweep.worker.training import Training
from raysweep.worker.user_loops import open_loop


class LentTraining(Training):
    """The user's loop, which tells a meter of each optimizer step."""

    log: LoopMeter

    has_worst_case = False
    """The memory pass has the loop's own batches."""

    @property
    def has_cycled(self) -> bool:
        """Whether samples have come a second time, as far as the loop has told."""
        return self.log.has_cycled

    def run(self) -> dict[str, Any]:
        """See `Training.run`.

        Raises:
            ConfigError: when the loop ends by itself, or its steps are none of the candidate's.
        """
        request = self.request
        self.samples = self
        self._report: dict[str, Any] | None = None
        # Imports the user's module: tensors that it makes are none of the candidate's.
        loop = open_loop(request.workload.model)
        with ExitStack() as until_weighed, without_lasting_state():
            gauge = until_weighed.enter_context(self.device.gauge(limit_bytes=self.limit_bytes(), rank=self.rank.rank))
            self.log = LoopMeter(
                request,
                self.rank,
                self.device,
                following=self._following(gauge, until_weighed),
                block_lists=request.workload.model["block_lists"],
                key=loop.key,
            )
            torch.manual_seed(request.workload.seed)
            try:
                with self.log.watching():
                    loop.run(request, self.log)
            except WindowClosed:
                pass
        if self._report is None:
            rule = f"ended after {len(self.log.losses)} optimizer steps, before it was measured; let it train on"
            raise ConfigError(key=loop.key, rule=rule)
        return self._report

    def _following(self, gauge: MemoryGauge, until_weighed: ExitStack) -> Following[None]:
        # At the first forward pass all is built.
        self.engine, self.counter, self.build_s = self.log.engine, self.log.counter, self.log.build_s
        memory = yield from weighing(gauge, steps=self.request.window.memory_pass_steps)
        # Following memory costs time.
        until_weighed.close()
        self.check_budget(memory)
        timing = yield from clocking(self.request.window, self.device, self.request.race)
        self._report = self.report(memory, timing)

    def tear_down(self) -> None:
        """See `Training.tear_down`."""
        if "log" in self.__dict__:
            # A loop that fails before its first forward pass may have an engine already.
            self.engine = self.log.engine
        super().tear_down()


@contextmanager
def without_lasting_state() -> Iterator[None]:
    """What Accelerate and transformers keep for the rest of a process is gone after it: the next candidate is another.

    Both keep DeepSpeed's plugin in classes and modules, and tell each other of it by the environment.
    """
    environment = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        state = sys.modules.get("accelerate.state")
        if state is not None:
            state.AcceleratorState._reset_state(reset_partial_state=True)
            state.GradientState._reset_state()
        integration = sys.modules.get("transformers.integrations.deepspeed")
        if integration is not None:
            integration.unset_hf_deepspeed_config()
