"""What a candidate must stay within to be admitted: the batch, the samples of the text, the memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raysweep.candidate import Candidate
from raysweep.errors import ConfigError
from raysweep.memory import CLOSED_FORM, MemoryEstimate
from raysweep.trial import PlanRow, SkipRule, TrialStatus
from raysweep.units import format_bytes
from raysweep.workload import Workload

ROUNDED_UP = 1.001
"""A size that is named as enough must be so when it is rounded for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a sweep, and the verdict on a candidate."""

    workload: Workload
    budget_bytes: int | None
    """None: not known yet, and nothing is pruned."""
    samples: int | None
    """Of the text; None where they do not run out or are not known."""
    unsupported_precision: str = ""
    """Why the sweep's precision does not run on its devices; empty where it does, or nobody has asked them yet."""
    prunes: bool = True
    """Whether what is predicted not to fit is left out."""

    def row(
        self,
        candidate: Candidate,
        *,
        legal: bool,
        estimate: MemoryEstimate | None = None,
        sent_bytes: int | None = None,
    ) -> PlanRow:
        """The candidate with its verdict, and what is predicted of it."""
        workload = self.workload.of(candidate)
        status, skip_rule, reason = None, None, ""
        if not legal:
            status, skip_rule = TrialStatus.SKIPPED, SkipRule.NO_LEGAL_BATCH
            reason = (
                f"micro-batch {candidate.micro_batch_size_per_gpu} x {workload.world_size} workers does not divide "
                f"global_batch_size {workload.global_batch_size}"
            )
        elif self.unsupported_precision:
            status, skip_rule = TrialStatus.SKIPPED, SkipRule.PRECISION_UNSUPPORTED
            reason = self.unsupported_precision
        elif self.samples is not None and self._needed(candidate) > self.samples:
            status, skip_rule = TrialStatus.SKIPPED, SkipRule.DATA_TOO_SMALL
            reason = (
                f"micro-batch {candidate.micro_batch_size_per_gpu} x {workload.world_size} workers needs "
                f"{self._needed(candidate)} samples, the text has {self.samples}"
            )
        elif self.prunes and estimate is not None and not self._may_fit(estimate):
            status = TrialStatus.PRUNED
            reason = (
                f"predicted peak {format_bytes(estimate.peak_bytes)} ({estimate.peak_phase}), at least "
                f"{format_bytes(estimate.lower_bound_bytes)}, is above the budget of {format_bytes(self.budget_bytes)}"
                f"{'' if estimate.source == CLOSED_FORM else f', by {estimate.source}'}"
            )
        return PlanRow(
            candidate=candidate,
            status=status,
            skip_rule=skip_rule,
            reason=reason,
            estimated_memory_bytes=None if estimate is None else estimate.peak_bytes,
            estimated_peak_terms={} if estimate is None else estimate.phases[estimate.peak_phase],
            estimated_sent_bytes_per_step=sent_bytes,
            world_size=workload.world_size,
            global_batch_size=workload.global_batch_of(
                candidate.micro_batch_size_per_gpu, candidate.gradient_accumulation_steps
            ),
        )

    def _may_fit(self, estimate: MemoryEstimate) -> bool:
        return self.budget_bytes is None or estimate.lower_bound_bytes <= self.budget_bytes

    def _needed(self, candidate: Candidate) -> int:
        """Samples that all ranks need for one micro-step."""
        return candidate.micro_batch_size_per_gpu * self.workload.of(candidate).world_size

    def check_something_fits(self, rows: list[PlanRow], estimates: Mapping[str, MemoryEstimate]) -> None:
        """Refuse a sweep of which no candidate is admitted; a batch that is illegal everywhere was refused before.

        Args:
            rows: of all candidates.
            estimates: candidate_id -> predicted memory.

        Raises:
            ConfigError: naming the budget and the smallest candidate, or the text and the samples that it lacks.
        """
        if self.unsupported_precision or any(row.status is None for row in rows):
            return
        pruned = [row.candidate.candidate_id for row in rows if row.status is TrialStatus.PRUNED]
        if pruned:
            needed = format_bytes(ROUNDED_UP * min(estimates[each].lower_bound_bytes for each in pruned))
            raise ConfigError(
                key="memory_budget",
                value=format_bytes(self.budget_bytes),
                rule=f"below the smallest candidate, which needs at least {needed}",
                nearest=needed,
            )
        smallest = min(self._needed(row.candidate) for row in rows if row.skip_rule is SkipRule.DATA_TOO_SMALL)
        raise ConfigError(
            key="data.path",
            value=self.workload.data["path"],
            rule=f"has {self.samples} samples of {self.workload.sequence_length} tokens, fewer than the {smallest} "
            f"that {self.workload.world_size} workers need at the smallest micro-batch",
        )
