"""The page of the batches that Spark has committed, by query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmqstore_spark.base.printable import size
from rmqstore_spark.server.status import plots
from rmqstore_spark.server.status.markup import Content, element
from rmqstore_spark.server.status.pages.frame import (
    NOT_KNOWN,
    Frame,
    Head,
    count,
    named_topics,
    of_page,
    pager,
    table,
    when,
)
from rmqstore_spark.server.status.views import MOST_MARKERS, WriterLine

ROWS: Final = 50
_PLOTTED: Final = 40
_KINDS: Final = {
    "stream": "streaming query",
    "batch": "application (txnAppId)",
    "once": "single write",
}


def commits_page(frame: Frame, lines: Sequence[WriterLine], asked: int | None) -> bytes:
    """Return the page.

    Args:
        frame: around it.
        lines: the writers, the one that committed last first.
        asked: the number of the page of the table.
    """
    at, pages, chosen = of_page(lines, asked, ROWS)
    heads = (
        Head("Writer"), Head("Last batch", is_number=True), Head("Committed", is_short=True),
        Head("Rows", is_number=True), Head("Size", is_number=True), Head("Topics"),
        Head("Rows of its batches"),
    )  # fmt: skip
    rows = [
        (
            [line.last.name, element("br"), element("small", _KINDS[line.last.kind])],
            NOT_KNOWN if line.last.kind == "once" else count(line.last.number),
            when(line.last.time),
            count(line.last.rows),
            size(line.last.size),
            named_topics(frame, list(line.last.topics)),
            _plot(line),
        )
        for line in lines[chosen]
    ]
    return frame.document(
        "Commits",
        element(
            "p",
            f"The writers of the newest {MOST_MARKERS:,} batches in the log. Each batch is stored "
            "once, however often Spark repeats it.",
        ),
        table(heads, rows, "Queries and writes of Spark"),
        pager(frame, "commits", at, pages),
    )


def _plot(line: WriterLine) -> Content:
    if len(line.commits) == 1:
        return None
    rows = [float(commit.rows) for commit in line.commits[:_PLOTTED]][::-1]
    return plots.line(rows, f"Rows of the last {len(rows)} batches", width=160, height=32)
