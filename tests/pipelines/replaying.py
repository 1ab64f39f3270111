"""The expected and the actual messages of a target of the writing jobs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.datasource.sink.serving import Served
from tests.support.stores.expected import backed_rows

__all__ = ["LIVE_ROWS", "found", "wanted"]

LIVE_ROWS = 981
"""Messages of `live` that are not in system topics."""

_COLUMNS = ("queueId", "queueOffset", "body", "tags", "keys", "bornTimestamp", "flag")

Queues = dict[tuple[str, int], list[tuple[Any, ...]]]


def wanted(golden: Path, prefix: str) -> Queues:
    """Return the messages of each queue in order, with topics `LiveX` renamed to `prefixX`."""
    rows = [row for row in backed_rows(golden) if row["topic"].startswith("Live")]
    assert len(rows) == LIVE_ROWS
    return _by_queue((prefix + row["topic"].removeprefix("Live"), row) for row in rows)


def found(target: Served, topics: Iterable[str]) -> Queues:
    """Return the same for the target."""
    return _by_queue((topic, row) for topic in topics for row in target.rows(topic, _COLUMNS))


def _by_queue(rows: Iterable[tuple[str, dict[str, Any]]]) -> Queues:
    queues: Queues = {}
    for topic, row in rows:
        queue = queues.setdefault((topic, row["queueId"]), [])
        keys = tuple(row["keys"] or ())
        queue.append((row["body"], row["tags"], keys, row["bornTimestamp"], row["flag"]))
    return queues
