"""Who is told what happens in a sweep, as it happens."""

from __future__ import annotations

from raysweep.plan import SweepPlan
from raysweep.trial import Measurement, Phase


class Observer:
    """Hears nothing; what interests a listener is overridden. All calls come from the driver, one at a time."""

    def planned(self, plan: SweepPlan, launches: int) -> None:
        """The plan stands; at most `launches` candidates will be launched in the search."""

    def note(self, text: str) -> None:
        """A step of the sweep began."""

    def launching(self, candidate_id: str, phase: Phase, round_number: int) -> None:
        """A candidate is handed to the launcher; the round is 0 outside the confirmation."""

    def measured(self, measurement: Measurement) -> None:
        """A launch ended."""
