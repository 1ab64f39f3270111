"""What a target of the writing jobs must hold, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.datasource.sink.serving import Served
from tests.support.expected import backed_rows

__all__ = ["LIVE_ROWS", "found", "wanted"]

LIVE_ROWS = 981
"""Messages of `live` in topics that are not the system's."""

_COLUMNS = ("queueId", "queueOffset", "body", "tags", "keys", "bornTimestamp", "flag")

Queues = dict[tuple[str, int], list[tuple[Any, ...]]]


def wanted(golden: Path, prefix: str) -> Queues:
    """The messages of each queue in their order, of topics called `LiveX` as `prefixX`."""
    rows = [row for row in backed_rows(golden) if row["topic"].startswith("Live")]
    assert len(rows) == LIVE_ROWS
    return _by_queue((prefix + row["topic"].removeprefix("Live"), row) for row in rows)


def found(target: Served, topics: Iterable[str]) -> Queues:
    """The same of what was written."""
    return _by_queue((topic, row) for topic in topics for row in target.rows(topic, _COLUMNS))


def _by_queue(rows: Iterable[tuple[str, dict[str, Any]]]) -> Queues:
    queues: Queues = {}
    for topic, row in rows:
        queue = queues.setdefault((topic, row["queueId"]), [])
        keys = tuple(row["keys"] or ())
        queue.append((row["body"], row["tags"], keys, row["bornTimestamp"], row["flag"]))
    return queues
