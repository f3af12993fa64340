"""A family of candidates and the traces of those that were chosen: what to trace next, and what members need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raysweep.allocations import are_alike, between, peak_terms
from raysweep.candidate import Candidate
from raysweep.trace import RankTrace
from raysweep.trace_estimate import Terms, fullest_terms
from raysweep.trace_families import interpolated, next_micro_batches


class TracedFamily:
    """Candidates that differ in nothing but the micro-batch.

    Args:
        example: one of them.
        members: their micro-batches, ascending.
    """

    def __init__(self, example: Candidate, members: Sequence[int]) -> None:
        self._example = example
        self.members = members
        self.ranks: tuple[int, ...] = (0,)
        """Ranks to trace: one of each kind."""
        self.traces: dict[int, dict[int, RankTrace]] = {}
        """Micro-batch -> rank -> trace."""
        self.error = ""
        """Why the family cannot be traced."""

    def wanted(self) -> list[tuple[Candidate, int]]:
        """Candidates and ranks to trace next; none once all members are known, or one cannot be traced."""
        if self.error:
            return []
        begun = [each for each in self.traces if not self._is_complete(each)]
        micro_batches = begun or next_micro_batches(self.members, self._totals(), is_sure=self._are_alike)
        return [
            (replace(self._example, micro_batch_size_per_gpu=micro_batch), rank)
            for micro_batch in micro_batches
            for rank in self.ranks
            if rank not in self.traces.get(micro_batch, {})
        ]

    def add(self, micro_batch: int, trace: RankTrace) -> None:
        """Take in a trace; one that failed ends the family."""
        if trace.error:
            self.error = trace.error
            return
        self.traces.setdefault(micro_batch, {})[trace.rank] = trace
        if trace.rank == 0:
            # Rank 0 is traced first and counts too, so that its collectives and stand-ins are known.
            self.ranks = tuple(dict.fromkeys((*self.ranks, *trace.ranks_of_a_kind)))

    def terms(self, micro_batch: int, *, device: str) -> tuple[Terms, bool]:
        """Phase -> kind -> bytes of a member, and whether it is interpolated."""
        complete = self._complete()
        if micro_batch in complete:
            return fullest_terms([trace.phase_kinds_bytes for trace in complete[micro_batch]], device=device), False
        low = max(each for each in complete if each < micro_batch)
        high = min(each for each in complete if each > micro_batch)
        if self._are_alike(low, high):
            return fullest_terms(self._moved(low, high, micro_batch), device=device), True
        known = {
            each: fullest_terms([trace.phase_kinds_bytes for trace in ranks], device=device)
            for each, ranks in complete.items()
        }
        return interpolated(micro_batch, known), True

    def _moved(self, low: int, high: int, micro_batch: int) -> list[Terms]:
        """Terms of each rank by the allocations of two other micro-batches."""
        lows, highs = self.traces[low], self.traces[high]
        return [
            peak_terms(
                between(
                    lows[rank].allocations,
                    highs[rank].allocations,
                    low_batch=low,
                    high_batch=high,
                    batch=micro_batch,
                )
            )
            for rank in self.ranks
        ]

    def _are_alike(self, low: int, high: int) -> bool:
        lows, highs = self.traces[low], self.traces[high]
        return all(
            bool(lows[rank].allocations.events)
            and are_alike(lows[rank].allocations, highs[rank].allocations, low_batch=low, high_batch=high)
            for rank in self.ranks
        )

    def _is_complete(self, micro_batch: int) -> bool:
        return set(self.ranks) <= set(self.traces[micro_batch])

    def _complete(self) -> dict[int, list[RankTrace]]:
        return {each: list(ranks.values()) for each, ranks in self.traces.items() if self._is_complete(each)}

    def _totals(self) -> dict[int, dict[str, int]]:
        return {
            micro_batch: {
                phase: sum(kinds.values())
                for phase, kinds in fullest_terms([trace.phase_kinds_bytes for trace in ranks], device="cpu").items()
            }
            for micro_batch, ranks in self._complete().items()
        }
