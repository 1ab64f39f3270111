"""A curve: what something costs, by how much of something else there is.

A point is kept as a figure of results.csv: its section names the curve, its name what is measured
and at which count, its value has a unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.report.figures import Figure

__all__ = ["SECTION", "Curve", "Measure", "Panel", "Points", "bend", "beyond", "points", "shown"]

SECTION: Final = "Scale: "

Points = Mapping[str, Mapping[int, float]]
"""Value by count, in the unit's base, by series."""
Measure = Callable[[Path, int], Mapping[str, float]]
"""Measures all series at one count, in a folder that is empty: value by series."""

_POINT: Final = re.compile(r"(.*), at ([\d,]+)")
_VALUE: Final = re.compile(r"([\d.,]+) ?(.*)")
_UNITS: Final = {
    "s": (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)),
    "B": (("B", 1.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)),
    "/s": (("/s", 1.0), ("k/s", 1e3), ("M/s", 1e6)),
    "B/s": (("B/s", 1.0), ("KB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)),
    "%": (("%", 0.01),),
}
"""By base unit: the units that values are written in, and what they are of the base unit."""
_FACTORS: Final = {name: factor for units in _UNITS.values() for name, factor in units}
_LONGEST: Final = 600.0
"""Seconds that are not written as minutes or hours."""
_LATER: Final = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0))


@dataclass(frozen=True)
class Panel:
    """Series of a curve that share an axis.

    Attributes:
        title: what the axis shows.
        unit: the base unit, a key of `_UNITS`.
        series: their names.
        is_bounded: what grows here cannot grow on and on, so that no arithmetic goes beyond.
    """

    title: str
    unit: str
    series: Sequence[str]
    is_bounded: bool = False

    @property
    def is_rate(self) -> bool:
        """Whether more is better: then there is no cost that could grow."""
        return self.unit.endswith("/s")


@dataclass(frozen=True)
class Curve:
    """What is measured at growing counts of something.

    Attributes:
        name: of the curve, and of its plot.
        title: of its section.
        what: is counted.
        counts: where it is measured, ascending.
        beyond: a count that this machine does not reach.
        panels: what is measured.
        measure: measures it.
        about: how it is measured, in a sentence or two.
    """

    name: str
    title: str
    what: str
    counts: Sequence[int]
    beyond: int
    panels: Sequence[Panel]
    measure: Measure
    about: str

    def up_to(self, most: int) -> Curve:
        """Return the curve without greater counts."""
        return replace(self, counts=[count for count in self.counts if count <= most])

    def figures(self, count: int, found: Mapping[str, float]) -> Iterator[Figure]:
        """Return what was measured at a count, as figures."""
        for panel in self.panels:
            for series in panel.series:
                if series in found:
                    value = shown(found[series], panel.unit, 4)
                    yield Figure(f"{SECTION}{self.name}", f"{series}, at {count:,}", value)


def points(curve: Curve, figures: Sequence[Figure]) -> Points:
    """Return the points of a curve that are among some figures."""
    found: dict[str, dict[int, float]] = {}
    for figure in figures:
        name, value = _POINT.fullmatch(figure.name), _VALUE.fullmatch(figure.value)
        if figure.section == f"{SECTION}{curve.name}" and name and value:
            count = int(name[2].replace(",", ""))
            number = float(value[1].replace(",", "")) * _FACTORS[value[2]]
            found.setdefault(name[1], {})[count] = number
    return found


def bend(of: Mapping[int, float]) -> float:
    """Return the exponent of the last step: 1 if the cost grew as the count did, 0 if it did not.

    Over all points the constant part of a cost would hide how it grows in the end.
    """
    (before, low), (last, high) = sorted(of.items())[-2:]
    return math.log(high / low) / math.log(last / before) if low > 0 and high > 0 else 0.0


def beyond(of: Mapping[int, float], count: int) -> float:
    """Return what a cost comes to at a count that was not measured.

    The line through the last two points, or, if the last step bends upward, its power law. What
    did not grow stays as it was.
    """
    (before, low), (last, high) = sorted(of.items())[-2:]
    exponent = bend(of)
    if exponent > 1:
        return high * float(count / last) ** exponent
    return high + max(high - low, 0.0) / (last - before) * (count - last)


def shown(value: float, unit: str, digits: int = 3) -> str:
    """Return a value with the unit in which it is short."""
    if unit == "s" and value > _LONGEST and digits <= 3:
        name, factor = next(each for each in _LATER if value >= each[1])
    else:
        units = _UNITS[unit]
        name, factor = next((u for u in reversed(units) if value >= u[1]), units[0])
    scaled = value / factor
    if scaled >= 10 ** (digits - 1):
        return f"{scaled:,.0f} {name}"
    return f"{scaled:.{digits}g} {name}"
