"""Draws scatter plots as plain SVG: smaller than a plotting library in the page by megabytes, and it prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 48
MOST_TICKS = 6
FEW_DOTS = 600
"""Up to so many dots say what they are when they are pointed at; more would only make the page heavy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point in data units."""

    x: float
    y: float
    kind: str
    """A CSS class: done, best, oom."""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points in data units."""

    points: Sequence[tuple[float, float]]
    kind: str
    """A CSS class: front, limit, equal, trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What is drawn, in data units."""

    label: str
    """What it shows, for those who do not see it."""
    x_name: str
    y_name: str
    dots: Sequence[Dot]
    lines: Sequence[Line] = ()
    from_zero: bool = False
    """Whether both axes begin at 0."""


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def draw(plot: Plot) -> Markup:
    """The plot as an `<svg>` element; colours come from the page's style sheet."""
    across = [dot.x for dot in plot.dots] + [x for line in plot.lines for x, _ in line.points]
    up = [dot.y for dot in plot.dots] + [y for line in plot.lines for _, y in line.points]
    x_axis = _axis(across, LEFT, WIDTH - RIGHT, from_zero=plot.from_zero)
    y_axis = _axis(up, HEIGHT - BOTTOM, TOP, from_zero=True)
    parts = [_frame(x_axis, y_axis, plot)]
    parts += [_line(line, x_axis, y_axis) for line in plot.lines]
    parts += [_dot(dot, x_axis, y_axis, titled=len(plot.dots) <= FEW_DOTS) for dot in plot.dots]
    return Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, plot.label, Markup("").join(parts)
    )


def tick_values(low: float, high: float) -> list[float]:
    """Round numbers from `low` or below to `high` or above: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _axis(values: Sequence[float], start: float, end: float, *, from_zero: bool) -> _Axis:
    low = 0.0 if from_zero else min(values, default=0.0)
    ticks = tick_values(low, max(values, default=1.0))
    return _Axis(ticks[0], ticks[-1], start, end, ticks)


def _frame(x_axis: _Axis, y_axis: _Axis, plot: Plot) -> Markup:
    bottom, left = HEIGHT - BOTTOM, LEFT
    parts = []
    for value in x_axis.ticks:
        at = x_axis.at(value)
        parts.append(Markup('<path class="grid" d="M{} {}V{}"/>').format(at, TOP, bottom))
        parts.append(Markup('<text x="{}" y="{}" class="mid">{:g}</text>').format(at, bottom + 18, value))
    for value in y_axis.ticks:
        at = y_axis.at(value)
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(left, at, WIDTH - RIGHT))
        parts.append(Markup('<text x="{}" y="{}" class="end">{:g}</text>').format(left - 8, at + 4, value))
    middle = (TOP + bottom) / 2
    parts.append(Markup('<text x="{}" y="{}" class="mid">{}</text>').format(WIDTH / 2, HEIGHT - 8, plot.x_name))
    parts.append(
        Markup('<text transform="translate(14 {}) rotate(-90)" class="mid">{}</text>').format(middle, plot.y_name)
    )
    return Markup("").join(parts)


def _line(line: Line, x_axis: _Axis, y_axis: _Axis) -> Markup:
    points = " ".join(f"{x_axis.at(x)},{y_axis.at(y)}" for x, y in line.points)
    return Markup('<polyline class="{}" points="{}"/>').format(line.kind, points)


def _dot(dot: Dot, x_axis: _Axis, y_axis: _Axis, *, titled: bool) -> Markup:
    x, y = x_axis.at(dot.x), y_axis.at(dot.y)
    title = Markup("<title>{}</title>").format(dot.title) if titled and dot.title else ""
    if dot.kind == "oom":
        return Markup('<path class="oom" d="M{} {}l8 8m0 -8l-8 8">{}</path>').format(x - 4, y - 4, title)
    radius = 6 if dot.kind == "best" else 4
    return Markup('<circle class="{}" cx="{}" cy="{}" r="{}">{}</circle>').format(dot.kind, x, y, radius, title)
