"""What a candidate must stay within to be admitted: the batch, the samples of the text, the memory budget."""

from __future__ import annotations

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

    def verdict(
        self, candidate: Candidate, *, legal: bool, estimate: MemoryEstimate | None = None
    ) -> tuple[TrialStatus | None, SkipRule | None]:
        """PRUNED or SKIPPED with its rule; None and None where the candidate is admitted."""
        if not legal:
            return TrialStatus.SKIPPED, SkipRule.NO_LEGAL_BATCH
        if self.unsupported_precision:
            return TrialStatus.SKIPPED, SkipRule.PRECISION_UNSUPPORTED
        if self.samples is not None and self.samples_needed(candidate) > self.samples:
            return TrialStatus.SKIPPED, SkipRule.DATA_TOO_SMALL
        if self.prunes and estimate is not None and not self._may_fit(estimate):
            return TrialStatus.PRUNED, None
        return None, None

    def row(
        self,
        candidate: Candidate,
        *,
        legal: bool,
        estimate: MemoryEstimate | None = None,
        sent_bytes: int | None = None,
    ) -> PlanRow:
        """The candidate with its verdict and the reason for it, and what is predicted of it."""
        workload = self.workload.of(candidate)
        status, skip_rule = self.verdict(candidate, legal=legal, estimate=estimate)
        reason = ""
        if status is TrialStatus.PRUNED and estimate is not None:
            reason = (
                f"predicted peak {format_bytes(estimate.peak_bytes)} ({estimate.peak_phase}), at least "
                f"{format_bytes(estimate.lower_bound_bytes)}, is above the budget of {format_bytes(self.budget_bytes)}"
                f"{'' if estimate.source == CLOSED_FORM else f', by {estimate.source}'}"
            )
        elif skip_rule is not None:
            reason = self._why_skipped(candidate, skip_rule)
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

    def _why_skipped(self, candidate: Candidate, rule: SkipRule) -> str:
        if rule is SkipRule.PRECISION_UNSUPPORTED:
            return self.unsupported_precision
        workers = self.workload.of(candidate).world_size
        batch = f"micro-batch {candidate.micro_batch_size_per_gpu} x {workers} workers"
        if rule is SkipRule.NO_LEGAL_BATCH:
            return f"{batch} does not divide global_batch_size {self.workload.global_batch_size}"
        return f"{batch} needs {self.samples_needed(candidate)} samples, the text has {self.samples}"

    def _may_fit(self, estimate: MemoryEstimate) -> bool:
        return self.budget_bytes is None or estimate.lower_bound_bytes <= self.budget_bytes

    def samples_needed(self, candidate: Candidate) -> int:
        """Samples that all ranks need for one micro-step."""
        return candidate.micro_batch_size_per_gpu * self.workload.of(candidate).world_size

    def nothing_fits(self, *, smallest_bytes: int | None, fewest_samples: int | None) -> ConfigError:
        """The error of a sweep of which no candidate is admitted. (A batch that is legal nowhere was refused before.)

        It names the budget and the smallest candidate, or the text and the samples that it lacks.

        Args:
            smallest_bytes: least that a pruned candidate is predicted to need; None where none is pruned.
            fewest_samples: least that a candidate needs which the text is too small for; None where there is none.
        """
        if smallest_bytes is not None:
            needed = format_bytes(ROUNDED_UP * smallest_bytes)
            return ConfigError(
                key="memory_budget",
                value=format_bytes(self.budget_bytes),
                rule=f"below the smallest candidate, which needs at least {needed}",
                nearest=needed,
            )
        return ConfigError(
            key="data.path",
            value=self.workload.data["path"],
            rule=f"has {self.samples} samples of {self.workload.sequence_length} tokens, fewer than the "
            f"{fewest_samples} that {self.workload.world_size} workers need at the smallest micro-batch",
        )
