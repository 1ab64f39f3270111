"""Reading a store, without Spark: topics, queues, offsets and messages.

store      `Store`: a directory, opened
topics, queue, log_queues    what is in it
groups     how far consumers are
options, filters, times      what is wanted
plan       cut into splits
reading    a split read, whatever its kind
log/, rows/, keys/    reading the log, queues, and by key
lookup     single messages
tip        has the log grown
bisect     the first of many, by halving
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> object:
    # Some modules here need neither Arrow nor NumPy, and the command starts with these.
    if name == "Store":
        from rmqstore_spark.reader.store import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
