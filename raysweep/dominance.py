"""What one measurement proves of other candidates: a larger micro-batch alone never needs less memory."""

from __future__ import annotations

from raysweep.candidate import Candidate


def needs_no_less_memory(candidate: Candidate, than: Candidate) -> bool:
    """Whether a candidate cannot have a lower peak than another: the same in everything, with a larger micro-batch.

    Accumulation follows from the micro-batch where the global batch is fixed, so it may differ; to accumulate holds
    gradients longer, so only a candidate that does not stop accumulating is taken to need no less.
    """
    is_alike = (candidate.zero_stage, candidate.activation_checkpoint_interval, candidate.further_axes) == (
        than.zero_stage,
        than.activation_checkpoint_interval,
        than.further_axes,
    )
    accumulates_alike = (candidate.gradient_accumulation_steps > 1) >= (than.gradient_accumulation_steps > 1)
    return is_alike and accumulates_alike and candidate.micro_batch_size_per_gpu > than.micro_batch_size_per_gpu
