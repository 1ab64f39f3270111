"""Runs the background work of an open store: dispatch, flush, staging and periodic tasks.

The threads start one after the other, and end in reverse order, also if one cannot start.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from rmqstore_spark.engine.append.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.batches.batches import Transactions
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.opening import OpenStore
from rmqstore_spark.engine.periodic import Periodic
from rmqstore_spark.engine.tables.topics import TopicTable
from rmqstore_spark.errors import StoreWriteError

__all__ = ["Running"]

_log = logging.getLogger(__name__)

_LOOK_INTERVAL_MS: Final = 1000
# No room on the disk, or for open files: the next try flushes all that is left.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_WAIT_S: Final = 0.2


class Running:
    """Runs the background work of an open store.

    Args:
        store: the recovered store.
        config: the store's configuration.
        topics: the store's topics.
        admission: accepts no more messages after an error that makes it unsafe to go on.
        check_state: raises RefusedError if the store accepts nothing.
        clock: returns milliseconds since the epoch.
    """

    def __init__(
        self,
        store: OpenStore,
        config: StoreConfig,
        topics: TopicTable,
        admission: Admission,
        *,
        check_state: Callable[[], None],
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._config = config
        self._admission = admission
        self._index_flushed = time.monotonic()
        self._flushing = threading.Lock()
        parts = store.parts
        with ExitStack() as ends:
            self.dispatcher = Dispatcher(
                parts.queues, parts.indexes, parts.checkpoint, self._fail_by_dispatch
            )
            ends.callback(self.dispatcher.close)
            self.appender = Appender(
                store.log,
                parts.queues,
                self.dispatcher,
                config,
                clock=clock,
                last_timestamp=store.last_timestamp,
                on_failure=self.fail,
            )
            self.flusher = FlushService(
                store.log,
                config,
                last_timestamp=lambda: self.appender.last_timestamp,
                on_flushed=lambda time: parts.checkpoint.advance(physic=time),
                on_failure=self.fail,
            )
            ends.callback(self.flusher.close)
            self.transactions = Transactions(
                store.path,
                store.log.max_offset,
                config,
                topics,
                self.appender,
                self.flusher,
                check=admission.check,
                check_state=check_state,
                check_routes=admission.check_routes,
                clock=clock,
                on_failure=self.fail,
            )
            ends.callback(self.transactions.close)
            for name, interval, work in (
                ("queues", config.flush_interval_consume_queue, self._flush_queues_if_room),
                ("look", _LOOK_INTERVAL_MS, self._look),
            ):
                ends.callback(Periodic(f"rmqstore-{name}", interval, work, self.fail).close)
            self._ends = ends.pop_all()

    @property
    def lacking(self) -> Exception | None:
        """What lacks room, so that puts are refused: the next segment, or queues and index."""
        return self.dispatcher.stalled or self._store.log.lacking

    def fail(self, error: Exception) -> None:
        """Stop accepting messages."""
        if self._admission.failure is None:
            _log.error("The store %s accepts no more messages: %s", self._store.path, error)
        self._admission.fail(error)

    def flush(self) -> None:
        """Flush log, queues, index and checkpoint.

        Raises:
            StoreWriteError: the flush failed, and the store accepts no more messages; or only room
                is lacking, and part of the log is not in queues and index.
        """
        self.flusher.flush()
        self.drain()
        try:
            self._flush_queues(sync_index=True)
        except StoreWriteError as error:
            if error.errno not in _NO_ROOM:
                self.fail(error)
            raise

    def drain(self) -> None:
        """Wait until all appended records are in queues and index.

        Raises:
            StoreWriteError: dispatching failed, or there is no room for queues and index.
        """
        while not self.dispatcher.drain(_WAIT_S):
            stalled = self.dispatcher.stalled
            if stalled is not None:
                raise stalled

    def close(self) -> None:
        """Stop all threads. The next recovery handles whatever is not flushed by now."""
        self._ends.close()

    def _fail_by_dispatch(self, error: Exception) -> None:
        self.fail(StoreWriteError(f"queues and index could not be updated from the log: {error}"))

    def _look(self) -> None:
        """Check what changes without a put: the room on the disk, and the clock."""
        self._admission.look_at_disk()
        self._store.log.retry_segment()
        self.appender.time.look()

    def _flush_queues_if_room(self) -> None:
        try:
            self._flush_queues()
        except StoreWriteError as error:
            if error.errno not in _NO_ROOM:
                raise
            _log.warning("Queues and index could not be flushed: %s", error)

    def _flush_queues(self, *, sync_index: bool = False) -> None:
        with self._flushing:
            interval = self._config.flush_consume_queue_thorough_interval / 1000
            sync_index = sync_index or time.monotonic() - self._index_flushed >= interval
            reach("queues.before_flush")
            self.dispatcher.flush(sync_index=sync_index)
            if sync_index:
                self._index_flushed = time.monotonic()
            reach("checkpoint.before_write")
            self._store.parts.checkpoint.write()
