"""What a stream of a job does, told as it goes."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["follow"]


def follow(query: StreamingQuery) -> tuple[int, bool]:
    """Print what each micro-batch did, until the query ends or is interrupted.

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
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        while not query.awaitTermination(1):
            report()
        report()
    except KeyboardInterrupt:
        ended = False
        with contextlib.suppress(KeyboardInterrupt):
            query.stop()
        report()
    return rows, ended


def _line(progress: StreamingQueryProgress) -> str:
    return (
        f"batch {progress.batchId}: {progress.numInputRows:,} rows, "
        f"{progress.processedRowsPerSecond:,.0f} rows/s"
    )
