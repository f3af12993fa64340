"""Puts the figures of a run of the tutorial's sweep into docs/tutorial.md.

raysweep run search_spaces/sharding_in_practice.yaml
python benchmarks/tutorial_figures.py results/sharding_in_practice
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from raysweep.cli.report import load_facts
from raysweep.page import summary
from raysweep.page.facts import ReportFacts
from raysweep.page.gains import gains
from raysweep.page.step_parts import step_parts
from raysweep.search.explain_steps import explain_steps
from raysweep.units import format_bytes

TUTORIAL = Path(__file__).parents[1] / "docs/tutorial.md"
PLACE = re.compile(r"(<!-- figures: [^\n]+ -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def figures(facts: ReportFacts) -> str:
    """The winner, a row a candidate, what the winner gains, and where its step goes."""
    winner = facts.winner
    assert winner is not None, "the run has no winner"
    rate, interval = summary.rate_and_interval(facts)
    state = "confirmed" if facts.selection.confirmed else "not confirmed"
    lines = [
        f"From a run on {facts.sweep.started_at[:10]}, {summary.conditions(facts)}:",
        "",
        "| candidate | samples/s (search) | confirmed | measured peak | predicted |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| `{each.candidate_id}` | {_number(each.samples_per_s)} | {_number(each.confirmed_samples_per_s)} "
            f"| {format_bytes(each.peak_memory_bytes)} | {format_bytes(each.estimated_memory_bytes)} |"
            for each in facts.records
        ),
        "",
        f"Winner, {state}: `{winner.candidate_id}` with {rate} samples/s"
        + (f" (95 % interval {interval})." if interval else "."),
        *(f"Against {gain.against}: {gain.told}." for gain in gains(facts)),
        f"It cost {summary.cost(facts)}.",
    ]
    parts = step_parts(facts)
    if parts:
        shares = ", ".join(f"{part.kind} {part.percent} %" for part in parts.parts)
        lines += ["", f"Where the winner's step goes, by the step-time model: {shares}."]
    return "\n".join(lines) + "\n"


def put(text: str, into: str) -> str:
    """The tutorial with these figures in their place."""
    assert PLACE.search(into), "the tutorial has no place for figures"
    return PLACE.sub(lambda found: found[1] + text + found[2], into)


def _number(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2f}"


def main() -> None:
    """Rewrite the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results")
    given = parser.parse_args()
    facts = load_facts(given.results, explain=explain_steps)
    TUTORIAL.write_text(put(figures(facts), TUTORIAL.read_text()))


if __name__ == "__main__":
    main()
