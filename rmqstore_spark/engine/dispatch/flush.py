"""Flushes queues and index, and writes the checkpoint that vouches for them."""

from __future__ import annotations

import threading
import time

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper


class QueueFlusher:
    """Flushes what was dispatched, one call at a time. Thread-safe.

    Args:
        dispatcher: writes queues and index.
        checkpoint: the store's checkpoint.
        config: the store's configuration.
    """

    def __init__(
        self, dispatcher: Dispatcher, checkpoint: CheckpointKeeper, config: StoreConfig
    ) -> None:
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._interval = config.flush_consume_queue_thorough_interval / 1000
        self._index_flushed = time.monotonic()
        self._flushing = threading.Lock()

    def flush(self, *, sync_index: bool = False) -> None:
        """Flush queues and checkpoint.

        Args:
            sync_index: flush the newest index file too. That also happens every
                `flushConsumeQueueThoroughInterval`.

        Raises:
            StoreWriteError: a flush failed.
        """
        with self._flushing:
            sync_index = sync_index or time.monotonic() - self._index_flushed >= self._interval
            reach("queues.before_flush")
            self._dispatcher.flush(sync_index=sync_index)
            if sync_index:
                self._index_flushed = time.monotonic()
            reach("checkpoint.before_write")
            self._checkpoint.write()
