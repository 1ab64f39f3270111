"""Draws a curve: a line for each series, both axes logarithmic, panels one below the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.report.svg import drawing, text
from benchmarks.scale.curves import Curve, Panel, Points, shown

__all__ = ["curve_drawing"]

_COLORS: Final = ("#2f6fb5", "#d9822b", "#2e8b57", "#b03a5b", "#7a5bb0", "#6b7680", "#b5962f")
_WIDTH: Final = 860
_LEFT: Final = 76
_RIGHT: Final = 320
_HEAD: Final = 44
_HEIGHT: Final = 210
_BELOW: Final = 62
_LINE: Final = 17
"""Pixels from one line of a legend to the next."""

_Lines = Mapping[str, Mapping[int, float]]


def curve_drawing(curve: Curve, found: Points) -> str:
    """Return a drawing of a curve; series and points that were not measured are left out."""
    body: list[str] = []
    top = 0
    for panel in curve.panels:
        lines = {series: found[series] for series in panel.series if series in found}
        if lines:
            body += _panel(curve, panel, lines, top)
            top += _HEAD + _HEIGHT + _BELOW
    return drawing(f"{curve.title}: cost by number of {curve.what}", _WIDTH, max(top, 1), body)


class _Axis:
    """A logarithmic axis: from a decade or half of one to another, as pixels.

    Args:
        values: that it must show.
        first, last: pixels of its ends.
    """

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        self._low = math.floor(math.log10(min(positive)))
        self._high = max(math.ceil(math.log10(max(positive))), self._low + 1)
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + part * (self._last - self._first)

    def ticks(self) -> Iterator[float]:
        """Yield the decades."""
        for exponent in range(self._low, self._high + 1):
            yield 10.0**exponent


def _panel(curve: Curve, panel: Panel, lines: _Lines, top: int) -> Iterator[str]:
    low, high = top + _HEAD + _HEIGHT, top + _HEAD
    counts = [count for line in lines.values() for count in line]
    across = _Axis(counts, _LEFT, _WIDTH - _RIGHT)
    up = _Axis([value for line in lines.values() for value in line.values()], low, high)
    yield text(12, top + 24, panel.title, "h")
    for value in up.ticks():
        y = up.at(value)
        yield _line(_LEFT, y, _WIDTH - _RIGHT, y)
        yield text(_LEFT - 8, y + 4, shown(value, panel.unit), "s", "end")
    for value in across.ticks():
        x = across.at(value)
        yield _line(x, high, x, low)
        yield text(x, low + 18, f"{value:,.0f}", "s", "middle")
    yield text((_LEFT + _WIDTH - _RIGHT) / 2, low + 38, curve.what, "t", "middle")
    for number, (series, line) in enumerate(lines.items()):
        color = _COLORS[number]
        spots = [(across.at(n), up.at(y)) for n, y in sorted(line.items()) if y > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in spots)
        y = high + 6 + number * _LINE
        x = _WIDTH - _RIGHT + 16
        yield f'<rect x="{x}" y="{y - 2}" width="14" height="3" fill="{color}"/>'
        yield text(x + 20, y + 4, series, "s")


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#e3e8ed" '
        'stroke-width="1"/>'
    )
