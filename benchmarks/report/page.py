"""RESULTS.md: the figures that have an aim, in compact tables, and why an aim is missed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from string import ascii_uppercase
from typing import Final, NamedTuple

from benchmarks.report.figures import Figure
from benchmarks.report.plots import PLOTS

__all__ = ["page"]

_ATTACKS: Final = "The store process under attack"
_REASONS: Final = "Where an aim is missed"
_CHAPTERS: Final = {
    "Reading": (
        "Decode", "planBy", "tags", "Planning", "Spark, noop", "Streams", "Idle", "Sidecar",
        "The command",
    ),
    "Jobs": ("jobs/", "Jobs", "Memory"),
    "Writing": (
        "StoreWriter", "A block", "Through the store process", "Spark sink", "First write",
        "Puts", "What this machine", "Delayed", "Opening", "Memory of the store process",
    ),
    "Broker, name server, replication": (
        "A store process as", "RocketMQ's clients", "Pulls", "Spark with", "Replication",
        "Name server", "Status pages", "A DLedger group",
    ),
}  # fmt: skip
"""How the sections of a chapter begin; the longest beginning that fits a section counts."""
_DAY: Final = slice(5, 10)
"""Of what `figures.machine` says."""

_SIZES: Final = {
    "100 B": "100 B", "1024 B": "1 KiB", "1,024 B": "1 KiB", "1 KiB": "1 KiB", "4096 B": "4 KiB",
    "4 KiB": "4 KiB",
}  # fmt: skip
_ALL_SIZES: Final = list(dict.fromkeys(_SIZES.values()))
_SIZE: Final = re.compile(rf"(^|, bodies of |, )({'|'.join(_SIZES)})(, |$)")

_ABOUT: Final = """\
# Results

`make bench` measures everything below and prints it; `make bench BENCH_ARGS="--full --write"` also
writes this page, its plots, and [results.csv](results.csv), which has all figures, with spread and
CPU. Values joined by `;` are for bodies of 100 B, 1 KiB and 4 KiB, or the first of these, in this
order. A ratio compares two things measured in the same run: more is better, unless the aim begins
with "at most", "under" or "+". Figures of RocketMQ in-process, and of its producer over the network
in the tables of the sink, are recorded: those of 4.9.8 on a similar machine. Its decode is a range;
"at the lower end" is a rate that meets the aim against the lower end of it alone.
[files-or-databases.md](../docs/files-or-databases.md) compares the store with databases.

The last column has the day and the machine of each row. Rows of different machines, and of virtual
machines on different days, do not compare.
"""


class _Shown(NamedTuple):
    """A figure, and when it was measured on which machine, as `11-28 B`."""

    figure: Figure
    when: str


def page(figures: Sequence[Figure], measured: Sequence[str], before: str) -> str:
    """Return the page.

    Args:
        figures: of results.csv.
        measured: when and on which machine, of each (`figures.machine`).
        before: the page as it is; its last section is written by hand, and kept.
    """
    _, _, reasons = before.partition(f"\n## {_REASONS}\n")
    machines = dict(zip(dict.fromkeys(map(_machine, measured)), ascii_uppercase, strict=False))
    parts = [_ABOUT, *(f"- {letter}: {name}." for name, letter in machines.items())]
    chapters: dict[str, list[_Shown]] = {chapter: [] for chapter in (*_CHAPTERS, "Other")}
    for figure, when in zip(figures, measured, strict=True):
        if figure.met and figure.section != _ATTACKS:
            shown = _Shown(figure, f"{when[_DAY]} {machines[_machine(when)]}")
            chapters[_chapter(figure.section)].append(shown)
    for chapter, found in chapters.items():
        if found:
            parts += [f"\n## {chapter}\n", *_pictures(chapter), *_table(found)]
    attacks = [figure for figure in figures if figure.section == _ATTACKS]
    parts += [f"\n## {_ATTACKS}\n", *_pictures(_ATTACKS), *_attacks(attacks)]
    return "\n".join([*parts, f"\n## {_REASONS}\n", reasons.strip(), ""])


def _machine(measured: str) -> str:
    return measured.partition("; ")[2]


def _chapter(section: str) -> str:
    fits = [
        (len(begin), chapter)
        for chapter, begins in _CHAPTERS.items()
        for begin in begins
        if section.startswith(begin)
    ]
    return max(fits)[1] if fits else "Other"


def _pictures(chapter: str) -> list[str]:
    return [
        f"![{plot.title}](plots/{name}.svg)\n"
        for name, plot in PLOTS.items()
        if plot.chapter == chapter
    ]


def _table(shown: Sequence[_Shown]) -> Iterator[str]:
    yield "| figure | value | against | ratio | aim | met | measured |"
    yield "|---|---:|---|---:|---:|---|---|"
    merged: dict[str, dict[tuple[str, str], list[_Shown]]] = {}
    for each in shown:
        figure = each.figure
        rows = merged.setdefault(_without_size(figure.section), {})
        rows.setdefault((_without_size(figure.name), _first(figure.against)), []).append(each)
    for section, rows in merged.items():
        if len(rows) > 1:
            yield f"| **{section}** | | | | | | |"
        for (name, against), found in rows.items():
            same = [each.figure for each in found]
            cells = [
                _named(name if len(rows) > 1 else f"**{section}**: {name}", same),
                _joined([_first(each.value) for each in same]),
                against,
                _joined([_first(each.ratio) or each.other for each in same]),
                _joined([each.aim for each in same]),
                _joined([each.met for each in same]),
                "; ".join(dict.fromkeys(each.when for each in found)),
            ]
            yield f"| {' | '.join(cells)} |"


def _named(name: str, same: Sequence[Figure]) -> str:
    """Return a row's name, with the sizes that it is for unless they are the first of all."""
    sizes = [_size(figure) for figure in same]
    if sizes in ([""], _ALL_SIZES, _ALL_SIZES[:2]):
        return name
    return f"{name} ({', '.join(sizes)})"


def _attacks(figures: Sequence[Figure]) -> Iterator[str]:
    yield "| attack | peak of memory | later, and meanwhile |"
    yield "|---|---:|---:|"
    for (what, aim), same in groupby(figures, lambda each: (each.against, each.aim)):
        yield f"| | **aim: {aim}** | **{what}** |"
        for each in same:
            missed = "" if each.met == "yes" else " (missed)"
            yield f"| {each.name}{missed} | {each.value.removeprefix('peak ')} | {each.other} |"


def _without_size(text: str) -> str:
    return _SIZE.sub(lambda found: ", " if found[1] and found[3] else "", text)


def _size(figure: Figure) -> str:
    found = _SIZE.search(figure.name) or _SIZE.search(figure.section)
    return _SIZES[found[2]] if found else ""


def _first(text: str) -> str:
    """Return the first of several values in a cell."""
    return re.split(r"; |, (?=[\d.,]+ ns)", text)[0]


def _joined(values: Sequence[str]) -> str:
    """Join the values of a row; one that all have, or their unit, is written once."""
    if len(set(values)) == 1:
        return values[0]
    parts = [re.fullmatch(r"([\d.,+-]+)(.*)", value) for value in values]
    units = {part[2] for part in parts if part}
    if len(units) != 1 or None in parts:
        return "; ".join(values)
    return "; ".join(part[1] for part in parts if part) + units.pop()
