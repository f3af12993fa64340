"""The broker actor: long polls around the broker's state, for ranks, driver, reapers and Ray Train's controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.launch.broker_state import BrokerState
from raysweep.serde import to_dict

NAMESPACE = "raysweep"
POLL_S = 10.0
"""Longest that one call waits: a caller that is gone holds nothing for longer."""
_TICK_S = 1.0
CALL_TIMEOUT_S = POLL_S + 50.0
BACK_WITHIN_S = 60.0
"""How long a broker that died may take until Ray has started it again."""
SETTLE_S = 2.0
"""How long a rank's death waits for what the other ranks have to say: one of them may be the cause."""


class Broker:
    """Async actor class; every method that waits gives up after `POLL_S`."""

    def __init__(self, *, world_size: int, start_timeout_s: float) -> None:
        self._state = BrokerState(world_size=world_size, start_timeout_s=start_timeout_s)
        self._changed = asyncio.Condition()

    async def register(self, generation: str, rank: int, facts: Mapping[str, Any]) -> None:
        """See `BrokerState.register`."""
        self._state.register(generation, rank, facts)
        await self._notify()

    async def ask(self, generation: str, rank: int) -> dict[str, Any]:
        """Work for a rank: `do` is measure, leave, or wait (ask again)."""
        answer = await self._wait_for(lambda: self._ask(generation, rank))
        return answer or {"do": "wait"}

    def _ask(self, generation: str, rank: int) -> dict[str, Any] | None:
        answer = self._state.ask(generation, rank)
        if answer and answer["do"] == "measure":
            self._changed.notify_all()  # the other ranks' polls can now be answered, too
        return answer

    async def deliver(self, generation: str, rank: int, sequence: int, report: Mapping[str, Any]) -> None:
        """See `BrokerState.deliver`."""
        self._state.deliver(generation, rank, sequence, report)
        await self._notify()

    async def fail(self, generation: str, rank: int, sequence: int, failure: Mapping[str, Any]) -> None:
        """See `BrokerState.fail`."""
        self._state.fail(generation, rank, sequence, failure)
        await self._notify()

    async def died(self, errors: Mapping[int, Mapping[str, Any]]) -> None:
        """See `BrokerState.died`."""
        limit_s = asyncio.get_running_loop().time() + SETTLE_S
        while self._state.may_hear_more(errors) and asyncio.get_running_loop().time() < limit_s:
            await asyncio.sleep(0.1)
        self._state.died(errors)
        await self._notify()

    async def submit(self, request: Mapping[str, Any], deadline_s: float, group_key: Any) -> int:
        """See `BrokerState.submit`."""
        sequence = self._state.submit(request, deadline_s=deadline_s, group_key=group_key)
        await self._notify()
        return sequence

    async def result(self, sequence: int) -> dict[str, Any] | None:
        """See `BrokerState.result`; None when it is not there after one poll."""
        return await self._wait_for(lambda: self._state.result(sequence))

    async def end_group(self, reason: str) -> None:
        """See `BrokerState.end_group`."""
        self._state.end_group(reason)
        await self._notify()

    async def close(self, reason: str) -> None:
        """See `BrokerState.close`."""
        self._state.close(reason)
        await self._notify()

    async def cannot_start(self, reason: str) -> None:
        """The driver saw that Ray Train gave up."""
        self._state.cannot_start = self._state.cannot_start or reason
        await self._notify()

    async def workers_wanted(self) -> int | None:
        """See `BrokerState.workers_wanted`."""
        return self._state.workers_wanted()

    async def overdue_pids(self, node_id: str) -> list[int]:
        """See `BrokerState.overdue_pids`."""
        return self._state.overdue_pids(node_id)

    async def group_ends(self) -> list[dict[str, Any]]:
        """The groups that ended, for the driver."""
        return [to_dict(end) for end in self._state.ended_groups]

    async def waits_for(self) -> str:
        """See `BrokerState.waits_for`."""
        return self._state.waits_for()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait_for(self, ask: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Ask until there is an answer or the poll is over; asked on every change, and each second for the clock."""
        end = asyncio.get_running_loop().time() + POLL_S
        async with self._changed:
            while True:
                answer = ask()
                left_s = end - asyncio.get_running_loop().time()
                if answer is not None or left_s <= 0:
                    return answer
                try:
                    await asyncio.wait_for(self._changed.wait(), timeout=min(left_s, _TICK_S))
                except TimeoutError:
                    continue


def broker_name(sweep_id: str) -> str:
    """The actor's name: with the sweep's id, so that two sweeps can share a cluster."""
    return f"raysweep-broker-{sweep_id}"


def start_broker(sweep_id: str, *, world_size: int, start_timeout_s: float) -> Any:
    """Start the broker on this node, without reserving a CPU; the actor handle. It dies with the driver.

    Should its process die before, Ray starts it again. It then knows nothing of what ran, tells the group to leave,
    and the candidate is launched once more.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(Broker).options(
        name=broker_name(sweep_id),
        namespace=NAMESPACE,
        num_cpus=0,
        max_concurrency=10_000,
        max_restarts=-1,
        scheduling_strategy=here,
    )
    return actor.remote(world_size=world_size, start_timeout_s=start_timeout_s)


def find_broker(sweep_id: str) -> Any:
    """The handle of a running broker.

    Raises:
        ValueError: when it is not there.
    """
    return ray.get_actor(broker_name(sweep_id), namespace=NAMESPACE)


def call(broker: Any, method: str, *arguments: Any) -> Any:
    """Call a method of the broker; one that is being started again is waited for.

    Raises:
        ray.exceptions.RayActorError: when it does not come back.
    """
    limit_s = time.monotonic() + BACK_WITHIN_S
    while True:
        try:
            return ray.get(getattr(broker, method).remote(*arguments), timeout=CALL_TIMEOUT_S)
        except ray.exceptions.ActorUnavailableError:
            if time.monotonic() > limit_s:
                raise
            time.sleep(1.0)
