"""Reading a store, without Spark: topics, queues, offsets, messages, and what is wrong with it."""

from __future__ import annotations

from rmqstore_spark.reader.store import Store

__all__ = ["Store"]
