"""Run a job's stream, and print its progress."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqstore_spark.datasource.spark_api import HAS_READ_LIMITS

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


class Followed(NamedTuple):
    """What became of a query.

    Args:
        rows: of all micro-batches that it finished.
        ended: whether it ended by itself.
        moved: whether it read anything, if only messages that it leaves out.
    """

    rows: int
    ended: bool
    moved: bool


def follow_to_the_end(start: Callable[[], StreamingQuery]) -> Followed:
    """Run a query whose trigger is availableNow, until it has read everything.

    Before Spark 4.2 each run reads one micro-batch: there it is run again until it finds nothing.

    Args:
        start: starts the query, from its checkpoint.
    """
    rows = 0
    while True:
        done = follow(start())
        rows += done.rows
        if HAS_READ_LIMITS or not (done.ended and done.moved):
            return done._replace(rows=rows)


def follow(query: StreamingQuery) -> Followed:
    """Print the progress of each micro-batch, until the query ends or is interrupted."""
    printed, rows, ended, moved = -1, 0, True, False

    def report() -> None:
        nonlocal printed, rows, moved
        for progress in query.recentProgress:
            moved |= any(source.startOffset != source.endOffset for source in progress.sources)
            if progress.batchId > printed and progress.numInputRows:
                print(_line(progress), flush=True)
                printed = progress.batchId
                rows += progress.numInputRows

    def stop(*_: Any) -> None:
        # Raising here would break Spark's connection in the middle of a call.
        nonlocal ended
        ended = False

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while ended and not query.awaitTermination(1):
            report()
        if not ended:
            query.stop()
        report()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Followed(rows, ended, moved)


def _line(progress: StreamingQueryProgress) -> str:
    return (
        f"batch {progress.batchId}: {progress.numInputRows:,} rows, "
        f"{progress.processedRowsPerSecond:,.0f} rows/s"
    )
