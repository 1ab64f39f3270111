"""The page of what went wrong: the last warnings and errors of the process."""

from __future__ import annotations

from collections.abc import Sequence

from rmqstore_spark.server.status.markup import Markup, element
from rmqstore_spark.server.status.pages.frame import Frame, Head, table, when
from rmqstore_spark.server.status.problems import LoggedLine


def log_page(frame: Frame, problems: Sequence[LoggedLine]) -> bytes:
    """Return the page.

    Args:
        frame: around it.
        problems: the lines, the newest first.
    """
    return frame.document(
        "Log",
        element("p", "What this process has logged as a warning or worse, the newest first."),
        problem_table(problems),
    )


def problem_table(problems: Sequence[LoggedLine]) -> Markup:
    """Return a table of lines of the log."""
    rows = [
        (
            when(int(one.time * 1e6)),
            one.level,
            [one.text, element("br"), element("small", one.origin)],
        )
        for one in problems
    ]
    heads = (Head("Time", is_short=True), Head("Level", is_short=True), Head("What"))
    return table(heads, rows, "Warnings and errors")
