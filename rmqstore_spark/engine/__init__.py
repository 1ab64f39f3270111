"""The single writer of a store: `StoreWriter`.

    store        the API of the writer
    open_store   the open store: opens and closes it
    role         what the store may do now, as master or slave; `role_changes` changes it
    group/       the store as a member of a DLedger group; `leader_term` is a term in which it leads
    lock         keeps other writers and brokers away
    reserve      keeps room on the disk for the next start
    config/      the configuration of a store
    recovery/    recovers a store when it is opened
    admission    decides whether the store accepts a block; `health` remembers what failed
    append/      handles a put, from its block to its answer
    log/         writes, flushes and cuts the CommitLog
    dispatch/    writes queues and index
    queue_reader reads queues and their records, for consumers
    batches/     stages and commits Spark's batches
    delay/       delivers delayed messages
    transactions/  holds half messages, and ends their transactions
    expiry/      removes old segments, and archives them
    tables/      topics, groups, offsets, checkpoint: what has files of its own
    topic_changes  what clients may change of topics, and what goes with a topic
    workers      the threads of an open store, and its figures
    status       the outcomes of a put; `writable` decides which stores can be written

`store` is an API: its methods are docstrings and a line or a few of calls.
`counters` count for metrics. `failpoints` are places where tests kill the process. What the writer
relies on is asserted, once a batch or file: an AssertionError fails the store (`health`), which
then refuses all messages, and its next start checks the log. From outside, the engine imports
`reader`, `files`, `produce`, `layout` and what lies below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmqstore_spark.base.status import PutStatus
    from rmqstore_spark.engine.config.store_config import StoreConfig
    from rmqstore_spark.engine.status import PutResult
    from rmqstore_spark.engine.store import StoreWriter

__all__ = ["PutResult", "PutStatus", "StoreConfig", "StoreWriter"]

_HOMES: Final = {
    "PutResult": f"{__name__}.status",
    "PutStatus": "rmqstore_spark.base.status",
    "StoreConfig": f"{__name__}.config.store_config",
    "StoreWriter": f"{__name__}.store",
}


def __getattr__(name: str) -> object:
    # Lazy: clients and the command need single modules of these, and must not load the others.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
