"""Bar charts of the main figures, as SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.report.figures import Figure
from benchmarks.report.svg import drawing
from benchmarks.report.svg import text as svg_text

__all__ = ["PLOTS", "Plot", "plot"]


@dataclass(frozen=True)
class Bar:
    """One bar of a group.

    Attributes:
        series: what the legend calls it.
        section: of the figure.
        name: of the figure, or a part of it.
        against: what the figure is compared with, or how that begins.
        is_other: draw what it is compared with.
    """

    series: str
    section: str
    name: str
    against: str = ""
    is_other: bool = False


@dataclass(frozen=True)
class Plot:
    """A chart of groups of bars.

    Attributes:
        chapter: of the page that it is in.
        title: with the unit.
        groups: the bars of each, by their label.
    """

    chapter: str
    title: str
    groups: dict[str, list[Bar]]


_BYTES: Final = {"100 B": "100 B", "1 KiB": "1024 B", "4 KiB": "4096 B"}
_DECODE: Final = "all columns; 1 queue"
_PUT: Final = "StoreWriter.put, ASYNC_FLUSH, queues and index caught up"
_SINK: Final = "Spark sink, local[2], keys and tags, queues and index caught up"
_PARQUET: Final = "Spark's own Parquet"
_NOOP: Final = "a sink that takes Arrow"
_JAVA: Final = "A store process as the broker of RocketMQ's Java clients, ASYNC_FLUSH"

PLOTS: Final = {
    "decode": Plot(
        "Reading",
        "Decoding all columns of one queue, one thread: million messages a second",
        {
            size: [
                Bar("this package", f"Decode, bodies of {size}", _DECODE, "RocketMQ"),
                Bar("RocketMQ, at best", f"Decode, bodies of {size}", _DECODE, "RocketMQ", True),
            ]
            for size in _BYTES
        },
    ),
    "put": Plot(
        "Writing",
        "StoreWriter.put in one queue: million messages a second",
        {
            size: [
                Bar("encoded before", _PUT, f"{name}, 1 queue, encoded", "RocketMQ"),
                Bar("encoding included", _PUT, f"{name}, 1 queue, encoding included", "RocketMQ"),
                Bar("RocketMQ, in-process", _PUT, f"{name}, 1 queue, encoded", "RocketMQ", True),
            ]
            for size, name in _BYTES.items()
        },
    ),
    "sink": Plot(
        "Writing",
        "Spark writes, two cores: million rows a second",
        {
            size: [
                Bar("exactly-once", _SINK, f"{name}, exactly-once", _NOOP),
                Bar("at-least-once", _SINK, f"{name}, at-least-once", _NOOP),
                Bar("Parquet files", _SINK, f"{name}, exactly-once", _PARQUET, True),
                Bar("a sink that does nothing", _SINK, f"{name}, exactly-once", _NOOP, True),
            ]
            for size, name in _BYTES.items()
        },
    ),
    "clients": Plot(
        "Broker, name server, replication",
        "Java clients, messages of 100 B: messages a second",
        {
            name: [
                Bar("store process", _JAVA, f"100 B, {name}", "RocketMQ"),
                Bar("RocketMQ 4.9.8", _JAVA, f"100 B, {name}", "RocketMQ", True),
            ]
            for name in (
                "1 thread, single sends", "16 threads, single sends", "64 threads, single sends",
                "16 threads, batches of 32", "push consumer",
            )
        },
    ),
}  # fmt: skip

_COLORS: Final = ("#2f6fb5", "#8fb8e0", "#d9822b", "#b0b8c1")
_WIDTH: Final = 760
_LEFT: Final = 190
_RIGHT: Final = 120
_BAR: Final = 17
_GAP: Final = 14
_TOP: Final = 66


def plot(what: Plot, figures: Sequence[Figure]) -> str:
    """Draw a chart; a bar whose figure was not measured is left out."""
    groups = {
        label: [(bar.series, text, _number(text)) for bar in bars for text in _values(bar, figures)]
        for label, bars in what.groups.items()
    }
    series = list(dict.fromkeys(bar.series for bars in what.groups.values() for bar in bars))
    most = max((number for bars in groups.values() for _, _, number in bars), default=1.0)
    body = [svg_text(12, 24, what.title, "h"), *_legend(series)]
    y = _TOP
    for label, bars in groups.items():
        middle = y + len(bars) * _BAR / 2 + 4
        body.append(svg_text(_LEFT - 10, middle, label, "t", "end"))
        for name, text, number in bars:
            width = (_WIDTH - _LEFT - _RIGHT) * number / most
            shape = f'width="{width:.1f}" height="{_BAR - 3}" fill="{_COLORS[series.index(name)]}"'
            body.append(f'<rect x="{_LEFT}" y="{y}" {shape}/>')
            body.append(svg_text(_LEFT + width + 6, y + 11, _short(text), "s"))
            y += _BAR
        y += _GAP
    return drawing(what.title, _WIDTH, y, body)


def _legend(series: Sequence[str]) -> list[str]:
    shapes = []
    x = _LEFT
    for color, name in zip(_COLORS, series, strict=False):
        shapes.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{color}"/>')
        shapes.append(svg_text(x + 17, 48, name, "s"))
        x += 40 + 7 * len(name)
    return shapes


def _values(bar: Bar, figures: Sequence[Figure]) -> list[str]:
    """Return the value of a bar, as text; none, if it was not measured."""
    return [
        figure.other if bar.is_other else figure.value
        for figure in figures
        if figure.section == bar.section
        and (figure.name == bar.name or figure.name.startswith(f"{bar.name}, "))
        and figure.against.startswith(bar.against)
    ][:1]


def _short(text: str) -> str:
    """Return the first of several values in a cell: `0.70-1.20 M/s; 35 ns` has two."""
    return re.split(r"; |, ", text)[0]


def _number(text: str) -> float:
    """Return the number of a value; of a range, the higher one."""
    found = re.match(r"(?:[\d.,]+-)?([\d.,]+)", text)
    return float(found[1].rstrip(",").replace(",", "")) if found else 0.0
