"""docs/files-or-databases.md: tables of all figures of stores, and their plots.

The part before "Measured" is written by hand, and kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from benchmarks.report.figures import Figure
from benchmarks.report.plots import Bar, Plot
from benchmarks.stores.figures import OURS, SECTION
from benchmarks.stores.kinds import KINDS

__all__ = ["STORES_PAGE", "STORE_PLOTS", "stores_page"]

STORES_PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "files-or-databases.md"
_MARK: Final = "\n## Measured\n"
_ONE: Final = f"{SECTION}: appends of 1, 1 KiB, 1 queue"
_MANY: Final = f"{SECTION}: appends of 32, 1 KiB, 1,000 queues"
_SMALL: Final = f"{SECTION}: 200,000 messages, 100 B, 1,000 queues"
_LARGE: Final = f"{SECTION}: 200,000 messages, 1 KiB, 1,000 queues"


def _plot(title: str, bars: dict[str, tuple[str, str]]) -> Plot:
    """A chart with a group for each store.

    Args:
        title: its title, with the unit.
        bars: section and name of the figure, without the store, by what the legend says.
    """
    groups = {
        store: [Bar(series, at, f"{store}, {name}") for series, (at, name) in bars.items()]
        for store in KINDS
    }
    return Plot("Measured", title, groups)


STORE_PLOTS: Final = {
    "stores-sync": _plot(
        "Appends of one message of 1 KiB, synchronous: messages a second",
        {
            "1 writer": (_ONE, "synchronous, 1 writer"),
            "16 writers": (_ONE, "synchronous, 16 writers"),
        },
    ),
    "stores-async": _plot(
        "Appends of 32 messages of 1 KiB, 1,000 queues, asynchronous: messages a second",
        {
            "1 writer": (_MANY, "asynchronous, 1 writer"),
            "16 writers": (_MANY, "asynchronous, 16 writers"),
        },
    ),
    "stores-read": _plot(
        "Messages of 1 KiB read from the middle of 1,000 queues: messages a second",
        {
            "32 at a time": (_LARGE, "pulls of 32 from the middle"),
            "a queue at a time": (_LARGE, "scan from the middle"),
        },
    ),
    "stores-find": _plot(
        "A message found by its key, 1,000 queues: microseconds, less is better",
        {
            "100 B": (_SMALL, "find by key"),
            "1 KiB": (_LARGE, "find by key"),
        },
    ),
    "stores-written": _plot(
        "Bytes written to disk for each byte of a body, 1,000 queues; less is better",
        {
            "100 B": (_SMALL, "bytes written, of those of bodies"),
            "1 KiB": (_LARGE, "bytes written, of those of bodies"),
        },
    ),
}  # fmt: skip


def stores_page(figures: Sequence[Figure], measured: Sequence[str], before: str) -> str:
    """Return the page.

    Args:
        figures: of results.csv; those of other sections are passed over.
        measured: when and on which machine, of each.
        before: the page as it is.
    """
    pairs = zip(figures, measured, strict=True)
    mine = [(figure, where) for figure, where in pairs if figure.section.startswith(f"{SECTION}: ")]
    head, _, _ = before.partition(_MARK)
    parts = [head.rstrip("\n"), _MARK]
    wheres = dict.fromkeys(where for _, where in mine)
    parts += [f"{where.replace('; ', ': ', 1)}." for where in wheres]
    rows = [figure for figure, _ in mine]
    disk = [figure for figure in rows if figure.section == f"{SECTION}: the disk"]
    parts += [f"The disk, in the same run: {each.name}: {each.value}." for each in disk]
    parts += [
        f"\n![{plot.title}](../benchmarks/plots/{name}.svg)" for name, plot in STORE_PLOTS.items()
    ]
    for section, same in groupby(rows, lambda each: each.section):
        if section not in (f"{SECTION}: versions", f"{SECTION}: the disk"):
            title = section.removeprefix(f"{SECTION}: ")
            parts += [f"\n### {title[0].upper()}{title[1:]}\n", *_table(list(same))]
    parts += ["\n## Schemas and settings", *_schemas(rows)]
    return "\n".join([*parts, ""])


def _table(figures: Sequence[Figure]) -> Iterator[str]:
    """A row for each operation, a column for each store."""
    values: dict[str, dict[str, str]] = {}
    for figure in figures:
        store, _, what = figure.name.partition(", ")
        values.setdefault(what, {})[store] = figure.value
    stores = [store for store in KINDS if any(store in row for row in values.values())]
    yield f"| | {' | '.join(stores)} |"
    yield f"|---|{'---:|' * len(stores)}"
    for what, row in values.items():
        unit, cells = _without_unit([row.get(store, "") for store in stores])
        yield f"| {what}{unit} | {' | '.join(cells)} |"


def _without_unit(cells: Sequence[str]) -> tuple[str, list[str]]:
    """Take a unit that all cells have out of them."""
    units = {re.sub(r"^[\d.,]+", "", cell) for cell in cells if cell}
    if len(units) != 1:
        return "", list(cells)
    unit = units.pop()
    return f",{unit}" if unit else "", [cell.removesuffix(unit) for cell in cells]


def _schemas(figures: Sequence[Figure]) -> Iterator[str]:
    versions = {each.name: each for each in figures if each.section == f"{SECTION}: versions"}
    for name, kind in KINDS.items():
        found = versions.get(name)
        if found is not None:
            said = f": {found.note}" if found.note else ""
            title = "This store" if name == OURS else name[0].upper() + name[1:]
            yield f"\n### {title}\n\n{found.value}{said}\n"
            yield f"```\n{kind.schema}\n\n{kind.settings}\n```"
