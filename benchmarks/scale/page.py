"""The measured part of docs/scale.md, and its plots.

What stands before "Measured" is written by hand, and kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.report.figures import Figure
from benchmarks.scale.curves import SECTION, Curve, Panel, Points, bend, beyond, points, shown
from benchmarks.scale.drawing import curve_drawing
from benchmarks.scale.table import CURVES

__all__ = ["PAGE", "drawings", "scale_page"]

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
_MARK: Final = "\n## Measured\n"
_ABOUT: Final = """
Exponent: of the last step of the row; 1 means that the cost grows as the count does, 0 that it does
not grow. A part that is always the same lowers it. The last column is arithmetic: the line through
the last two points, or, where the exponent is above 1, its power law. It is empty for what cannot
grow on and on.
"""


def drawings(figures: Sequence[Figure]) -> dict[str, str]:
    """Return the plots, by the names of their files."""
    return {
        f"scale-{curve.name}.svg": curve_drawing(curve, points(curve, figures)) for curve in CURVES
    }


def scale_page(figures: Sequence[Figure], measured: Sequence[str], before: str) -> str:
    """Return the page.

    Args:
        figures: of results.csv; those of other sections are passed over.
        measured: when and on which machine, of each.
        before: the page as it is.
    """
    head, _, _ = before.partition(_MARK)
    pairs = zip(figures, measured, strict=True)
    wheres = dict.fromkeys(where for each, where in pairs if each.section.startswith(SECTION))
    parts = [head.rstrip("\n"), _MARK, *(f"{each.replace('; ', ': ', 1)}." for each in wheres)]
    parts.append(_ABOUT.rstrip("\n"))
    for curve in CURVES:
        found = points(curve, figures)
        if found:
            parts += [f"\n### {curve.title}\n", f"{curve.about}\n"]
            parts.append(f"![{curve.title}](../benchmarks/plots/scale-{curve.name}.svg)\n")
            parts += _table(curve, found)
    return "\n".join([*parts, ""])


def _table(curve: Curve, found: Points) -> Iterator[str]:
    counts = sorted({count for line in found.values() for count in line})
    heads = [f"{count:,}" for count in counts]
    yield f"| {curve.what} | {' | '.join(heads)} | exponent | {curve.beyond:,} |"
    yield f"|---|{'---:|' * (len(counts) + 2)}"
    for panel in curve.panels:
        for series in panel.series:
            if series in found:
                yield f"| {' | '.join(_row(curve, panel, series, found, counts))} |"


def _row(
    curve: Curve, panel: Panel, series: str, found: Points, counts: Sequence[int]
) -> Iterator[str]:
    line = found[series]
    yield series
    for count in counts:
        yield shown(line[count], panel.unit) if count in line else ""
    if panel.is_rate or len(line) < 2:
        yield ""
        yield ""
    else:
        yield f"{bend(line):.2f}"
        yield "" if panel.is_bounded else shown(beyond(line, curve.beyond), panel.unit)
