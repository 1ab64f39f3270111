"""The last figure of everything that was measured: results.csv, and pages and plots made of it.

`python -m benchmarks.report.results` makes pages and plots again, without measuring.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from benchmarks.report.figures import Figure, machine
from benchmarks.report.page import page
from benchmarks.report.plots import PLOTS, plot
from benchmarks.scale.page import PAGE as SCALE_PAGE
from benchmarks.scale.page import drawings as scale_drawings
from benchmarks.scale.page import scale_page
from benchmarks.stores.page import STORE_PLOTS, STORES_PAGE, stores_page

__all__ = ["Measured", "read_results", "write_page", "write_results"]

FOLDER: Final = Path(__file__).parents[1]
_TABLE: Final = FOLDER / "results.csv"
_PAGE: Final = FOLDER / "RESULTS.md"


@dataclass(frozen=True)
class Measured:
    """A figure, with when and on which machine it was measured (`figures.machine`)."""

    figure: Figure
    measured: str


def read_results() -> list[Measured]:
    """Return the figures of results.csv, in its order."""
    if not _TABLE.is_file():
        return []
    with _TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Measured(Figure(**row), measured) for row in rows for measured in [row.pop("measured")]]


def write_results(figures: Sequence[Figure]) -> None:
    """Replace the sections that were measured, keep the others, and write page and plots."""
    sections = {figure.section for figure in figures}
    here = machine()
    kept = [each for each in read_results() if each.figure.section not in sections]
    with _TABLE.open("w", encoding="utf-8", newline="") as file:
        names = [*(field.name for field in fields(Figure)), "measured"]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for each in [*kept, *(Measured(figure, here) for figure in figures)]:
            writer.writerow({**asdict(each.figure), "measured": each.measured})
    write_page()


def write_page() -> None:
    """Write RESULTS.md, the pages of scale and of stores, and plots. Text by hand is kept."""
    results = read_results()
    figures = [each.figure for each in results]
    measured = [each.measured for each in results]
    drawn = (PLOTS | STORE_PLOTS).items()
    plots = {f"{name}.svg": plot(each, figures) for name, each in drawn}
    for name, text in (plots | scale_drawings(figures)).items():
        (FOLDER / "plots" / name).write_text(text, encoding="utf-8")
    before = _PAGE.read_text(encoding="utf-8") if _PAGE.is_file() else ""
    _PAGE.write_text(page(figures, measured, before), encoding="utf-8")
    for path, made in ((SCALE_PAGE, scale_page), (STORES_PAGE, stores_page)):
        path.write_text(made(figures, measured, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_page()
