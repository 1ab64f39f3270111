"""Print the progress of a job's stream."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["follow"]


def follow(query: StreamingQuery) -> tuple[int, bool]:
    """Print the progress of each micro-batch, until the query ends or is interrupted.

    Returns:
        The rows of all micro-batches that this query finished, and whether it ended by itself.
    """
    printed, rows, ended = -1, 0, True

    def report() -> None:
        nonlocal printed, rows
        for progress in query.recentProgress:
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
    return rows, ended


def _line(progress: StreamingQueryProgress) -> str:
    return (
        f"batch {progress.batchId}: {progress.numInputRows:,} rows, "
        f"{progress.processedRowsPerSecond:,.0f} rows/s"
    )
