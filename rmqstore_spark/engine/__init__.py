"""The single writer of a store: `StoreWriter`.

    store        what callers use; the steps of opening are in `opening`
    lock, guard  one writer, and no broker beside it
    config/      its configuration
    recovery/    what a crash left is found and mended
    append/      a put, from its block to its answer
    log/         the CommitLog
    dispatch/    queues and index
    batches/     Spark's batches, committed once
    tables/      topics, checkpoint
    workers      the threads of an open store

`failpoints` are places where tests kill the process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig
    from rmqstore_spark.engine.status import PutResult, PutStatus
    from rmqstore_spark.engine.store import StoreWriter

__all__ = ["PutResult", "PutStatus", "StoreConfig", "StoreWriter"]

_HOMES: Final = {
    "PutResult": "status",
    "PutStatus": "status",
    "StoreConfig": "config.store_config",
    "StoreWriter": "store",
}


def __getattr__(name: str) -> object:
    # Clients and the command need single modules of these, and are to start without the others.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
