"""The page of what went wrong: the last warnings and errors of the process."""

from __future__ import annotations

from collections.abc import Sequence

from rmqstore_spark.server.status.markup import element
from rmqstore_spark.server.status.pages.frame import Frame, Head, table, when
from rmqstore_spark.server.status.problems import Problem


def log_page(frame: Frame, problems: Sequence[Problem]) -> bytes:
    """Return the page.

    Args:
        frame: around it.
        problems: the lines, the newest first.
    """
    rows = [
        (
            when(int(one.time * 1e6)),
            one.level,
            [one.text, element("br"), element("small", one.origin)],
        )
        for one in problems
    ]
    heads = (Head("Time"), Head("Level"), Head("What"))
    return frame.document(
        "Log",
        element("p", "What this process has logged as a warning or worse, the newest first."),
        table(heads, rows, "Warnings and errors"),
    )
