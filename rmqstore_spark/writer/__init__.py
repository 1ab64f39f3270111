"""The single writer of a store: log, queues, index, recovery."""

from __future__ import annotations

from rmqstore_spark.writer.config import StoreConfig
from rmqstore_spark.writer.status import PutResult, PutStatus
from rmqstore_spark.writer.store import StoreWriter

__all__ = ["PutResult", "PutStatus", "StoreConfig", "StoreWriter"]
