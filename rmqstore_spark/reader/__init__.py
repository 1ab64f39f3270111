"""Reading a store, without Spark: topics, queues, offsets, messages, and what is wrong with it."""

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
