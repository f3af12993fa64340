"""What the broker knows: the running worker group, the candidate it works on, and how both end. Knows no Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from raysweep.clock import utc_now
from raysweep.launch.group_job import Group, Job, kind_of, was_told_to_leave
from raysweep.outcome import DEADLINE_PASSED, PROCESS_DIED, is_collateral
from raysweep.serde import from_dict, to_dict
from raysweep.trial import GroupEnd, RankFailure

REAPER_GRACE_S = 15.0
"""How long after its deadline a rank may end itself (and write its stacks) before the reaper kills it."""
COLLATERAL_WAIT_S = 10.0
"""How long the first failure of a candidate waits for Ray's report of the other ranks."""
CAUSE_WAIT_S = 45.0
"""How long it waits where all that is known are errors of ranks whose peer is gone: Ray takes 15 to 30 s to find that a
node is lost."""
LOST_WAIT_S = 10.0
"""How long a broker that was started again waits for word of the ranks before it calls a candidate lost."""
START_FAILURES_ALLOWED = 3
"""Groups in a row that may die before they register; then the sweep is told that none can start."""
_LOST: Mapping[str, Any] = {
    "reports": [],
    "failures": [to_dict(RankFailure(rank=0, type_names=(PROCESS_DIED,), message="the broker died"))],
    "group_id": "",
    "position_in_group": 0,
    "ranks": [],
    "waited_s": 0.0,
}
"""What became of a candidate that the broker knows nothing of: it was started again meanwhile."""


class BrokerState:
    """Hands one candidate at a time to all ranks of the newest group, and collects what they answer.

    Control never travels by a collective: each rank asks for itself, and a candidate is handed out only when every
    rank of the generation has asked, so that no rank waits inside a collective while there is no work.
    """

    def __init__(self, *, world_size: int, start_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.world_size = world_size  # of the group that is wanted: it is the newest candidate's
        self.start_timeout_s = start_timeout_s
        self.clock = clock
        self.group: Group | None = None
        self.job: Job | None = None
        self.ended_groups: list[GroupEnd] = []
        self.ended_generations: set[str] = set()
        self.told_to_leave: list[tuple[float, Mapping[str, Any]]] = []
        """When a rank's group was ended, and the rank's facts."""
        self.start_failures = 0
        self.cannot_start = ""
        self.closing = ""
        self.began_at = clock()
        self.heard_of: dict[int, RankFailure] = {}
        """Deaths in a group that this broker never knew."""
        self._sizes: dict[str, int] = {}  # generation -> workers
        self._sequence = 0
        self._awaits_death = False  # the broker ended a group whose death Ray has not reported yet

    # --- asked by ranks ---------------------------------------------------------------------------------------

    def register(self, generation: str, rank: int, facts: Mapping[str, Any]) -> None:
        """A rank of a generation is up. The first rank of a new generation tells that the former one is gone."""
        self._sizes[generation] = facts.get("world_size", self.world_size)
        if self._is_resized(generation):
            self.ended_generations.add(generation)
        if generation in self.ended_generations:
            return
        if self.group is not None and self.group.generation != generation:
            self.end_group("replaced by a new group")
        if self.group is None:
            self.group = Group(generation=generation, started_at=utc_now())
            self._awaits_death = False
        self.group.ranks[rank] = facts
        if len(self.group.ranks) == self.world_size:
            self.start_failures = 0

    def ask(self, generation: str, rank: int) -> dict[str, Any] | None:
        """Work for a rank, an order to leave, or None where it has to wait."""
        group = self.group
        if group is None or group.generation != generation or self.closing:
            # A group of another size cannot be the one that Ray Train restarts: its run ends, and a new run begins.
            final = bool(self.closing) or self._is_resized(generation)
            return {"do": "leave", "final": final, "reason": self.closing or "the group was ended"}
        job = self.job
        if job is not None and job.generation == generation:
            if rank in job.taken or job.finished:
                group.idle.add(rank)
                return None
            job.taken.add(rank)
            return {"do": "measure", "sequence": job.sequence, "request": job.request}
        group.idle.add(rank)
        if job is None or job.generation or len(group.idle) < self.world_size:
            return None
        self._hand_out(job, group)
        return self.ask(generation, rank)

    def _is_resized(self, generation: str) -> bool:
        return self._sizes.get(generation, self.world_size) != self.world_size

    def _hand_out(self, job: Job, group: Group) -> None:
        group.handed_out += 1
        group.key = job.group_key
        group.idle.clear()
        job.generation = group.generation
        job.position_in_group = group.handed_out
        job.ranks = dict(group.ranks)
        job.handed_out_at = self.clock()

    def deliver(self, generation: str, rank: int, sequence: int, report: Mapping[str, Any]) -> None:
        """A rank's report of a candidate that ran to its end."""
        job = self.job
        if job is None or job.sequence != sequence or job.generation != generation:
            return
        job.reports[rank] = report
        job.finished = job.finished or len(job.reports) == self.world_size

    def fail(self, generation: str, rank: int, sequence: int, failure: Mapping[str, Any]) -> None:
        """A rank's own error. `data.collective` says that all ranks failed alike and the group lives on."""
        job = self.job
        if job is None or job.sequence != sequence or job.generation != generation or job.finished:
            return
        job.failures[rank] = from_dict(RankFailure, dict(failure))
        job.first_failure_at = job.first_failure_at or self.clock()
        if len(job.failures) == self.world_size and all(f.data.get("collective") for f in job.failures.values()):
            job.finished = True

    # --- told by Ray Train's controller, the reaper and the driver -------------------------------------------------

    def may_hear_more(self, errors: Mapping[int, Any]) -> bool:
        """Whether a rank that Ray does not count among the dead may yet report an error of its own."""
        group, job = self.group, self.job
        if group is None or job is None or job.generation != group.generation or job.finished:
            return False
        return len(set(errors) | set(job.failures)) < self.world_size

    def died(self, errors: Mapping[int, Mapping[str, Any]]) -> None:
        """Ray reports which ranks died of what. Their own words, where they came through, are kept."""
        failures = {rank: from_dict(RankFailure, dict(error)) for rank, error in errors.items()}
        group, job = self.group, self.job
        if group is None and self._awaits_death:
            self._awaits_death = False
            return
        if group is None or len(group.ranks) < self.world_size:
            self._count_start_failure(failures)
        if group is None:
            self.heard_of |= {rank: failure for rank, failure in failures.items() if not was_told_to_leave(failure)}
            return
        if job is not None and job.generation == group.generation and not job.finished:
            for rank, failure in failures.items():
                job.failures.setdefault(rank, self._with_place(job, rank, failure))
        first = min(failures)
        self.end_group(f"rank {first} died: {kind_of(failures[first])}")
        self._awaits_death = False

    def _count_start_failure(self, failures: Mapping[int, RankFailure]) -> None:
        if all(was_told_to_leave(failure) for failure in failures.values()):
            return  # by a broker that did not know the group
        self.start_failures += 1
        if self.start_failures >= START_FAILURES_ALLOWED:
            first = failures[min(failures)]
            self.cannot_start = f"rank {first.rank}: {kind_of(first)}: {first.message}"

    def _with_place(self, job: Job, rank: int, failure: RankFailure) -> RankFailure:
        """Ray's report of a dead process, with its node and log, and as a passed deadline where that explains it."""
        facts = job.ranks.get(rank, {})
        plain = to_dict(failure) | {"node": facts.get("node", ""), "log_path": facts.get("log_path", "")}
        if "ray.exceptions.RayActorError" in failure.type_names:
            overdue = self.seconds_past_deadline(job) > -1.0
            plain["type_names"] = [DEADLINE_PASSED if overdue else PROCESS_DIED, *failure.type_names]
            if overdue:
                plain["message"] = f"still busy at its deadline of {job.deadline_s:.0f} s; its stacks are in its log"
        return from_dict(RankFailure, plain)

    def end_group(self, reason: str) -> None:
        """The running group is over; a candidate that it still held ends as failed."""
        group, job = self.group, self.job
        if group is None:
            return
        if job is not None and job.generation == group.generation and not job.finished:
            if not job.failures:
                job.failures[0] = RankFailure(rank=0, type_names=(PROCESS_DIED,), message=reason)
            job.finished = True
        self.ended_generations.add(group.generation)
        self.told_to_leave += [(self.clock(), facts) for facts in group.ranks.values()]
        self.ended_groups.append(
            GroupEnd(
                group_id=group.generation,
                reason=reason,
                started_at=group.started_at,
                ended_at=utc_now(),
                worker_pids=tuple(int(group.ranks[rank]["pid"]) for rank in sorted(group.ranks)),
                nodes=tuple(str(group.ranks[rank]["node"]) for rank in sorted(group.ranks)),
            )
        )
        self.group = None
        self._awaits_death = True

    def close(self, reason: str) -> None:
        """No more candidates: the group is told to leave for good."""
        self.end_group(reason)
        self.closing = reason

    # --- asked by the driver and the reaper -------------------------------------------------------------------------

    def submit(self, request: Mapping[str, Any], *, deadline_s: float, group_key: Any) -> int:
        """Queue a candidate; its sequence number. A group whose candidates had another key is ended first.

        So is one that is still at work: who waited for its candidate is gone.
        """
        if self.job is not None and not self.job.finished:
            self.end_group("the trial that waited for its candidate is gone")
        if self.group is not None and self.group.handed_out and self.group.key != group_key:
            self.end_group("the next candidate cannot share its process")
        workers = request.get("workload", {}).get("world_size", self.world_size)
        if workers != self.world_size:
            self.end_group(f"the next candidate has {workers} workers")
            self.world_size = workers
        self._sequence += 1
        self.job = Job(
            sequence=self._sequence,
            request=request,
            deadline_s=deadline_s,
            submitted_at=self.clock(),
            group_key=group_key,
        )
        return self._sequence

    def result(self, sequence: int) -> dict[str, Any] | None:
        """What became of a submitted candidate, or None while it is not over."""
        job = self.job
        if job is None or job.sequence != sequence:
            return self._result_of_a_lost_one()
        waited_s = 0.0 if job.first_failure_at is None else self.clock() - job.first_failure_at
        wait_s = CAUSE_WAIT_S if all(is_collateral(each) for each in job.failures.values()) else COLLATERAL_WAIT_S
        if not job.finished and waited_s > wait_s:
            self.end_group(f"rank {min(job.failures)} failed: {kind_of(job.failures[min(job.failures)])}")
        if not job.finished:
            self._check_start(job)
            return {"cannot_start": self.cannot_start} if self.cannot_start else None
        return {
            "reports": [job.reports[rank] for rank in sorted(job.reports)] if not job.failures else [],
            "failures": [to_dict(job.failures[rank]) for rank in sorted(job.failures)],
            "group_id": job.generation,
            "position_in_group": job.position_in_group,
            "ranks": [job.ranks[rank] for rank in sorted(job.ranks)],
            "waited_s": 0.0 if job.handed_out_at is None else job.handed_out_at - job.submitted_at,
        }

    def _result_of_a_lost_one(self) -> dict[str, Any] | None:
        """Of a candidate that a former broker had: what killed that may have killed ranks, of which Ray yet tells."""
        if not self.heard_of and self.clock() - self.began_at < LOST_WAIT_S:
            return None
        heard = [to_dict(failure) for failure in self.heard_of.values()]
        return {**_LOST, "failures": heard or _LOST["failures"]}

    def waits_for(self) -> str:
        """What the submitted candidate waits for; empty where it runs, or there is none."""
        job = self.job
        if job is None or job.finished or job.handed_out_at is not None:
            return ""
        waited_s = self.clock() - job.submitted_at
        return (
            f"waiting for workers: {self._ranks_up()} of {self.world_size} are up after {waited_s:.0f} s "
            f"(given up after {self.start_timeout_s:.0f} s)"
        )

    def _ranks_up(self) -> int:
        return len(self.group.ranks) if self.group else 0

    def _check_start(self, job: Job) -> None:
        if job.handed_out_at is None and self.clock() - job.submitted_at > self.start_timeout_s:
            self.cannot_start = (
                f"{self._ranks_up()} of {self.world_size} workers were up after {self.start_timeout_s:.0f} s "
                "(cluster.group_start_timeout_seconds)"
            )

    def seconds_past_deadline(self, job: Job) -> float:
        """Positive once the candidate has run longer than its deadline; minus infinity before it was handed out."""
        if job.handed_out_at is None:
            return float("-inf")
        return self.clock() - job.handed_out_at - job.deadline_s

    def workers_wanted(self) -> int | None:
        """Workers of the next group; None where no group is wanted any more."""
        return None if self.closing or self.cannot_start else self.world_size

    def overdue_pids(self, node_id: str) -> list[int]:
        """Processes on a node that are past deadline and grace without an answer, or were told long ago to leave."""
        overdue = [facts for ended_at, facts in self.told_to_leave if self.clock() - ended_at > REAPER_GRACE_S]
        job = self.job
        if job is not None and not job.finished and self.seconds_past_deadline(job) >= REAPER_GRACE_S:
            overdue += [facts for rank, facts in job.ranks.items() if rank not in job.reports]
        return [int(facts["pid"]) for facts in overdue if facts["node_id"] == node_id]
