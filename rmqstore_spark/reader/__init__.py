"""Reads a store without Spark: topics, queues, offsets and messages.

store      opens a store directory (`Store`)
topics     lists the topics; finds the queues in a log, for a store without ConsumeQueues
options    defines the options of a read, and its splits; `void` counts what has no rows
texts      parses tags, keys, names, times and sizes
plan       cuts queue ranges or the log into splits, and reads a split of any kind
key_index  decides which IndexFiles can be trusted, and looks up keys in them
key_search finds the records that have a key, through the index or in the log
key_read   reads the messages with a key as the queues hold them, for one split
rows/      turns queue entries and records into rows
queue      reads one ConsumeQueue; `queue_ends` looks up the offsets of many
before     looks at the records before some offsets
log/       reads the CommitLog
lookup     looks up single messages by key, id or time
transactions    finds the transactions that wait for their end
groups     shows consumer lag and the progress of delay levels
growth     detects that the log has grown

From outside it imports `files`, `layout` and `errors`.

"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> object:
    # Imported late: some modules here need neither Arrow nor NumPy, so the command starts faster.
    if name == "Store":
        from rmqstore_spark.reader.store import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
