"""Charts as SVG, readable on light and dark pages: colours come from a style sheet that follows the reader's scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 760
HEIGHT: Final = 400
LEFT: Final = 64
RIGHT: Final = 168  # the legend
TOP: Final = 44
BOTTOM: Final = 52

# Okabe and Ito's colours, which readers with any colour vision tell apart; black and yellow give way to greys, for both backgrounds.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a8a8a", "#b0b0b0")

_STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 14px; font-weight: 600 }
.grid { stroke: #d0d7de; stroke-width: 1 }
.axis { stroke: #57606a; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .grid { stroke: #373e47 }
  .axis { stroke: #8b949e }
}
"""

Scale = Callable[[float], float]


class Line(NamedTuple):
    """A series of points. Lines of one group share their colour."""

    name: str
    group: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def lines(title: str, x_label: str, y_label: str, series: Sequence[Line]) -> str:
    """Series of points, both axes logarithmic. Values are above 0."""
    points = [point for line in series for point in line.points]
    groups = list(dict.fromkeys(line.group for line in series))
    x_ticks, x = _logarithmic([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_ticks, y = _logarithmic([y for _, y in points], HEIGHT - BOTTOM, TOP)
    body = [_horizontal(value, y(value)) for value in y_ticks] + [_tick(_short(value), x(value)) for value in x_ticks]
    keys = []
    for line in series:
        colour, dash = COLOURS[groups.index(line.group) % len(COLOURS)], ' stroke-dasharray="5 4"' if line.dashed else ""
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in sorted(line.points))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        body += [
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4" fill="{colour}"><title>{escape(line.name)}: {b:g} at {a:g}</title></circle>'
            for a, b in line.points
        ]
        keys.append((line.name, f'<path d="M0,6h14" stroke="{colour}" stroke-width="3"{dash}/>'))
    return _chart(title, x_label, y_label, body, keys)


def stacked_bars(title: str, x_label: str, y_label: str, bars: Mapping[str, Mapping[str, float]]) -> str:
    """A bar per name, made of parts; parts keep their colour over all bars."""
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    top = max((sum(bar.values()) for bar in bars.values()), default=1) or 1
    step = _step(top)
    ticks = [n * step for n in range(math.ceil(1.08 * top / step) + 1)]  # room for the number on the tallest bar

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / ticks[-1]

    slot = (WIDTH - RIGHT - LEFT) / max(1, len(bars))
    body = [_horizontal(value, y(value)) for value in ticks]
    for number, (name, bar) in enumerate(bars.items()):
        left, below = LEFT + slot * (number + 0.2), 0.0
        for part, value in bar.items():
            height, colour = y(below) - y(below + value), COLOURS[parts.index(part) % len(COLOURS)]
            body.append(
                f'<rect x="{left:.1f}" y="{y(below + value):.1f}" width="{slot * 0.6:.1f}" height="{height:.1f}" fill="{colour}">'
                f"<title>{escape(name)}, {escape(part)}: {value:g}</title></rect>"
            )
            below += value
        centre = left + slot * 0.3
        body.append(f'<text x="{centre:.1f}" y="{y(below) - 6:.1f}" text-anchor="middle">{below:.0f}</text>')
        body.append(f'<text x="{centre:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(name)}</text>')
    keys = [(part, f'<rect width="12" height="12" fill="{COLOURS[parts.index(part) % len(COLOURS)]}"/>') for part in parts]
    return _chart(title, x_label, y_label, body, keys)


def _chart(title: str, x_label: str, y_label: str, body: Sequence[str], legend: Sequence[tuple[str, str]]) -> str:
    """`legend`: names, and marks drawn at the origin."""
    middle, centre = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    keys = [
        f'<g transform="translate({WIDTH - RIGHT + 18},{TOP + 20 * number})">{mark}<text x="20" y="10.5">{escape(name)}</text></g>'
        for number, (name, mark) in enumerate(legend)
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
            *body,
            f'<path class="axis" fill="none" d="M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>',
            f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
            f'<text transform="translate(16,{centre}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
            *keys,
            "</svg>\n",
        )
    )


def _logarithmic(values: Sequence[float], start: float, end: float) -> tuple[list[float], Scale]:
    """Ticks at 1, 2 and 5 of every decade, and positions from `start` to `end`."""
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    first = max((step for step in steps if step <= low), default=steps[0])
    last = min((step for step in steps if step >= high), default=steps[-1])
    if last == first:
        last = first * 10
    span = math.log(last / first)
    return [step for step in steps if first <= step <= last], lambda value: start + (end - start) * math.log(value / first) / span


def _step(top: float) -> float:
    """Of a linear axis with about five lines: 1, 2 or 5 of a decade."""
    rough = top / 5
    decade: float = 10.0 ** math.floor(math.log10(rough))
    return next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= rough)


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _horizontal(value: float, y: float) -> str:
    return (
        f'<path class="grid" d="M{LEFT},{y:.1f}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>'
    )


def _tick(text: str, x: float) -> str:
    return (
        f'<path class="grid" d="M{x:.1f},{TOP}V{HEIGHT - BOTTOM}"/>'
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>'
    )
