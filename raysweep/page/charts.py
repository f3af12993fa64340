"""The charts of a report: speed against memory, predicted against measured memory, the search as it went."""

from __future__ import annotations

import statistics

from markupsafe import Markup

from raysweep.page.facts import ReportFacts
from raysweep.page.svg import Dot, Line, Plot, draw
from raysweep.results.records import TrialRecord
from raysweep.results.worth import best_known_rate
from raysweep.trial import TrialStatus
from raysweep.units import MIB


def speed_against_memory(facts: ReportFacts) -> Markup | None:
    """Samples/s over peak memory with the Pareto front and the budget; None where nothing completed."""
    completed = [record for record in facts.completed if record.peak_memory_bytes is not None]
    if not completed:
        return None
    front = [facts.by_id[each] for each in facts.selection.pareto_front]
    dots = [_dot(record, (_peak(record), best_known_rate(record)), facts) for record in completed]
    top = max(dot.y for dot in dots)
    lines = [Line(points=sorted((_peak(each), best_known_rate(each)) for each in front), kind="front")]
    return draw(
        Plot(
            label=f"Samples per second against peak memory of {len(completed)} candidates; the table has the figures",
            x_name="peak memory of the fullest worker (MiB)",
            y_name="samples/s",
            dots=dots,
            lines=lines + _budget(facts, top),
        )
    )


def predicted_against_measured(facts: ReportFacts) -> Markup | None:
    """Measured over predicted peaks, out of memory included; None where no candidate has both."""
    both = [
        record
        for record in facts.records
        if record.peak_memory_bytes is not None and record.estimated_memory_bytes is not None
    ]
    if not both:
        return None
    dots = [_dot(record, ((record.estimated_memory_bytes or 0) / MIB, _peak(record)), facts) for record in both]
    largest = max(max(dot.x, dot.y) for dot in dots)
    return draw(
        Plot(
            label=f"Measured against predicted peak memory of {len(both)} candidates; the table has the figures",
            x_name="predicted peak (MiB)",
            y_name="measured peak (MiB)",
            dots=dots,
            lines=[Line(points=[(0, 0), (largest, largest)], kind="equal")],
            from_zero=True,
        )
    )


def prediction_error(facts: ReportFacts) -> str:
    """How far predicted peaks lie from measured ones, in words; empty where no completed candidate has both."""
    errors = sorted(
        (record.estimated_memory_bytes or 0) / (record.peak_memory_bytes or 1) - 1
        for record in facts.completed
        if record.peak_memory_bytes and record.estimated_memory_bytes
    )
    if not errors:
        return ""
    return (
        f"Predicted less measured peak, {len(errors)} candidates: {_percent(errors[0])} to {_percent(errors[-1])}, "
        f"median {_percent(statistics.median(errors))}."
    )


def _percent(share: float) -> str:
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(share * 100, 1) + 0.0:+.1f} %"


def step_times(facts: ReportFacts) -> Markup | None:
    """Measured over predicted step times, each predicted from the other candidates; None where that is not known."""
    steps = facts.steps
    if steps is None:
        return None
    dots = [
        Dot(
            x=steps.predicted_s[each],
            y=measured_s,
            kind="best" if each == steps.candidate_id else "done",
            title=f"{each}: predicted {steps.predicted_s[each]:.3f} s, measured {measured_s:.3f} s",
        )
        for each, measured_s in steps.measured_s.items()
    ]
    largest = max(max(dot.x, dot.y) for dot in dots)
    return draw(
        Plot(
            label=f"Measured against predicted step time of {len(dots)} candidates",
            x_name="predicted step time (s)",
            y_name="measured step time (s)",
            dots=dots,
            lines=[Line(points=[(0, 0), (largest, largest)], kind="equal")],
            from_zero=True,
        )
    )


def step_time_error(facts: ReportFacts) -> str:
    """How far predicted step times lie from measured ones, in words; empty where that is not known."""
    if facts.steps is None:
        return ""
    errors = [abs(facts.steps.predicted_s[each] / seen - 1) for each, seen in facts.steps.measured_s.items()]
    return (
        f"Each of {len(errors)} candidates predicted from the others: off by {100 * statistics.median(errors):.1f} % "
        f"in the median, {100 * max(errors):.1f} % at most."
    )


def search_trace(facts: ReportFacts) -> Markup | None:
    """Rate of each launch in its order, and the best so far; None where nothing was launched."""
    if not facts.search_launches:
        return None
    dots: list[Dot] = []
    trace: list[tuple[float, float]] = []
    best = 0.0
    for number, launch in enumerate(facts.search_launches, start=1):
        rate = launch.figures.samples_per_s if launch.figures else 0.0
        kind = "done" if launch.status is TrialStatus.COMPLETED else "oom"
        if launch.candidate_id == facts.selection.winner:
            kind = "best"
        dots.append(Dot(x=number, y=rate, kind=kind, title=f"{number}: {launch.candidate_id}, {launch.status}"))
        if launch.status is TrialStatus.COMPLETED and rate > best:
            trace += [(number, best), (number, rate)] if trace else [(number, rate)]
            best = rate
    trace.append((len(facts.search_launches), best))
    return draw(
        Plot(
            label=f"Samples per second of {len(dots)} launches in their order, with the best so far",
            x_name="launch",
            y_name="samples/s",
            dots=dots,
            lines=[Line(points=trace, kind="trace")],
            from_zero=True,
        )
    )


def _dot(record: TrialRecord, at: tuple[float, float], facts: ReportFacts) -> Dot:
    kind = "done" if record.status is TrialStatus.COMPLETED else "oom"
    if record.candidate_id == facts.selection.winner:
        kind = "best"
    return Dot(x=at[0], y=at[1], kind=kind, title=f"{record.candidate_id}: {at[1]:.2f} at {at[0]:.1f} MiB")


def _budget(facts: ReportFacts, top: float) -> list[Line]:
    budget_bytes = facts.sweep.memory_budget_bytes
    return (
        []
        if budget_bytes is None
        else [Line(points=[(budget_bytes / MIB, 0), (budget_bytes / MIB, top)], kind="limit")]
    )


def _peak(record: TrialRecord) -> float:
    return (record.peak_memory_bytes or 0) / MIB
