"""A chart of what policies cost against what they leave in sight, as SVG.

Light or dark as its reader is, by the style that it holds; no script, no font of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Panel", "Point", "front", "pareto_svg"]

WIDTH, HEIGHT = 900, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 48
CHAR_WIDTH, LINE_HEIGHT = 6.6, 14
RADIUS = 5

STYLE = """\
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.title { font-size: 14px; font-weight: 600; }
.soft { fill: var(--soft); }
.paper { fill: var(--paper); }
.grid { stroke: var(--line); stroke-width: 1; }
.leader { stroke: var(--soft); stroke-width: 0.75; }
.front { stroke: var(--ours); stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }
.ours { fill: var(--ours); }
.other { fill: var(--paper); stroke: var(--soft); stroke-width: 1.5; }
text.other { fill: var(--soft); stroke: none; }
"""
COLOURS = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "line": "#d9dee3",
        "paper": "#ffffff",
        "ours": "#0b62c4",
    },
    "dark": {
        "ink": "#e6edf3",
        "soft": "#a3adb8",
        "line": "#3a424c",
        "paper": "#15191f",
        "ours": "#6cb6ff",
    },
}


@dataclass(frozen=True, slots=True)
class Point:
    """A policy: its *cost* in that of no management, and the share of what is used that is *seen*.

    *is_ours* is whether it is one of ours, or what others do.
    """

    name: str
    cost: float
    seen: float
    is_ours: bool = True


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of sessions: its title, and the policies that were measured on it."""

    title: str
    points: Sequence[Point]


def front(points: Iterable[Point]) -> list[Point]:
    """Those that no other beats in both cost and sight, the cheapest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.seen)):
        if not best or point.seen > best[-1].seen:
            best.append(point)
    return best


def pareto_svg(panels: Sequence[Panel]) -> str:
    """The chart, one panel below the other."""
    height = HEIGHT * len(panels)
    size = f'width="{WIDTH}" height="{height}"'
    box = f'viewBox="0 0 {WIDTH} {height}"'
    label = 'role="img" aria-label="Cost of policies against what they leave in sight"'
    dark = f"@media (prefers-color-scheme: dark) {{ {_variables('dark')} }}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} {label}>',
        f"<style>\n{_variables('light')}\n{STYLE}{dark}\n</style>",
        f'<rect class="paper" {size}/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0 {number * HEIGHT})">')
        parts += _panel(panel)
        parts.append("</g>")
    parts.append("</svg>\n")
    return "\n".join(parts)


def _variables(scheme: str) -> str:
    values = " ".join(f"--{name}: {value};" for name, value in COLOURS[scheme].items())
    return f":root {{ {values} }}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """A scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, step: float) -> list[float]:
        first, last = round(self.low / step), round(self.high / step)
        return [number * step for number in range(first, last + 1)]


def _panel(panel: Panel) -> Iterator[str]:
    costs = [point.cost for point in panel.points]
    seen = [point.seen for point in panel.points]
    x = _Axis(
        math.floor(min(costs) * 10 - 0.3) / 10,
        math.ceil(max(costs) * 10 + 0.5) / 10,
        LEFT,
        WIDTH - RIGHT,
    )
    least_seen = min(0.95, math.floor(min(seen) * 20) / 20)  # an axis has a length
    y = _Axis(least_seen, 1.0, HEIGHT - BOTTOM, TOP)
    yield f'<text class="title" x="{LEFT}" y="22">{escape(panel.title)}</text>'
    yield from _grid(x, y)
    line = " ".join(f"{x(point.cost):.1f},{y(point.seen):.1f}" for point in front(panel.points))
    yield f'<polyline class="front" points="{line}"/>'
    for point in panel.points:
        yield _mark(point, x(point.cost), y(point.seen))
    yield from _labels(panel.points, x, y)


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for value in x.ticks(0.1):
        at = f"{x(value):.1f}"
        yield f'<line class="grid" x1="{at}" y1="{TOP}" x2="{at}" y2="{HEIGHT - BOTTOM}"/>'
        yield (
            f'<text class="soft" x="{at}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{value:.1f}</text>"
        )
    for value in y.ticks(0.05):
        at = f"{y(value):.1f}"
        yield f'<line class="grid" x1="{LEFT}" y1="{at}" x2="{WIDTH - RIGHT}" y2="{at}"/>'
        yield (
            f'<text class="soft" x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">'
            f"{value:.2f}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield (
        f'<text class="soft" x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">'
        "cost, relative to no management (cheaper is left)</text>"
    )
    yield (
        f'<text class="soft" transform="translate(16 {HEIGHT / 2}) rotate(-90)" '
        'text-anchor="middle">in sight when used</text>'
    )


def _mark(point: Point, x: float, y: float) -> str:
    name = f"<title>{escape(point.name)}: {point.cost:.3f}, {point.seen:.3f}</title>"
    if point.is_ours:
        return f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}">{name}</circle>'
    corner = f'x="{x - RADIUS + 0.5:.1f}" y="{y - RADIUS + 0.5:.1f}"'
    size = 2 * RADIUS - 1
    return f'<rect class="other" {corner} width="{size}" height="{size}">{name}</rect>'


# Labels -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: _Box) -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)


def _labels(points: Sequence[Point], x: _Axis, y: _Axis) -> Iterator[str]:
    """Each name beside its point, where it covers least of what is there already."""
    taken = []
    for point in points:
        at, height = x(point.cost), y(point.seen)
        taken.append(_Box(at - RADIUS, height - RADIUS, at + RADIUS, height + RADIUS))
    for point in sorted(points, key=lambda point: (not point.is_ours, point.cost)):
        boxes = list(_places(point, x(point.cost), y(point.seen)))
        costs = [sum(box.overlap(other) for other in taken) + _outside(box) for box in boxes]
        box = boxes[costs.index(min(costs))]
        taken.append(box)
        group = "ours" if point.is_ours else "other"
        yield from _leader(box, x(point.cost), y(point.seen))
        yield (
            f'<text class="{group}" x="{box.left:.1f}" y="{box.bottom - 3:.1f}">'
            f"{escape(point.name)}</text>"
        )


def _leader(box: _Box, x: float, y: float) -> Iterator[str]:
    """A thin line from the point to its label, where that is not right beside it."""
    across = min(max(x, box.left), box.right)
    up = min(max(y, box.top + 3), box.bottom - 3)
    length = math.hypot(across - x, up - y)
    if length > 2 * RADIUS:
        start = RADIUS / length
        first = f'x1="{x + start * (across - x):.1f}" y1="{y + start * (up - y):.1f}"'
        yield f'<line class="leader" {first} x2="{across:.1f}" y2="{up:.1f}"/>'


def _places(point: Point, x: float, y: float) -> Iterator[_Box]:
    width = CHAR_WIDTH * len(point.name)
    half = LINE_HEIGHT / 2
    gap = RADIUS + 3
    for shift in (0, half, -half, LINE_HEIGHT, -LINE_HEIGHT, 3 * half, -3 * half):
        for left in (x + gap, x - gap - width):
            yield _Box(left, y - half + shift, left + width, y + half + shift)
    for top in (y - gap - LINE_HEIGHT, y + gap, y + gap + LINE_HEIGHT):
        for left in (x - width / 2, x - width, x):
            yield _Box(left, top, left + width, top + LINE_HEIGHT)


def _outside(box: _Box) -> float:
    """How much of *box* lies outside of the panel, which counts far more than an overlap."""
    area = (box.right - box.left) * (box.bottom - box.top)
    panel = _Box(LEFT, TOP - LINE_HEIGHT, WIDTH - 4, HEIGHT - BOTTOM)
    return 10 * (area - box.overlap(panel))
