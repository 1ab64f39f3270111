"""Appends the bytes of a master's log: the store is a copy of that log, and stays one.

Records keep the offsets and times that the master gave them. They are checked as a whole, written
where they belong, and then dispatched to queues and index as all others are. (Upstream:
HAService.HAClient, DefaultMessageStore.appendToCommitLog, which check nothing.)

A Spark batch is as hidden here as it was at the master until all of it has come: its first record
says where it ends (`layout.record.format`). If the rest never comes, the log ends before it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.copied import Copied, feed_of, last_time, make_topics
from rmqstore_spark.engine.append.replica_deletions import ReplicaDeletions
from rmqstore_spark.engine.append.stamped import (
    MAX_UNIT_SIZE,
    OpenBatch,
    Stamped,
    check_stamped,
    divide,
)
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.tables.followed import FollowedTables
from rmqstore_spark.errors import (
    RefusedError,
    ReplicationError,
    RmqStoreError,
    StoreWriteError,
)
from rmqstore_spark.layout.spans import U1

_log = logging.getLogger(__name__)

_READ_AT_ONCE: Final = 2 * MAX_UNIT_SIZE


class Replica:
    """A store's log as a copy of a master's. Used by one thread at a time, the offsets by any.

    Args:
        store: the open store.
        admission: knows whether the store still works.
        appender, flusher: append to the log, and flush it.
        dispatcher: writes its queues.

    Attributes:
        tables: what it takes over from the master beside the log.
        newest: storeTimestamp of the last record that was appended, milliseconds; 0 for none.
    """

    def __init__(
        self,
        store: OpenStore,
        admission: Admission,
        appender: Appender,
        flusher: FlushService,
        dispatcher: Dispatcher,
    ) -> None:
        self._store = store
        self._log = store.log
        self._topics = store.topics
        self._admission = admission
        self._appender = appender
        self._flusher = flusher
        self._health = admission.health
        self._feed = feed_of(store)
        self.tables = FollowedTables(
            store.path,
            store.role,
            store.topics,
            store.consumer_offsets,
            store.groups,
            ReplicaDeletions(store, appender, dispatcher),
            lambda: store.log.flushed_offset,
        )
        self.newest = store.log.last_timestamp
        self._held = store.log.max_offset
        self._batch: OpenBatch | None = None

    @property
    def begin(self) -> int:
        """The physical offset of the log's first byte."""
        return self._log.min_offset

    @property
    def end(self) -> int:
        """The physical offset up to which the master's log is held, and can be read."""
        return self._log.max_offset

    @property
    def held(self) -> int:
        """As `end`, with the bytes of a batch that is not whole yet."""
        return self._held

    @property
    def segment_size(self) -> int:
        """Bytes of a segment, here and at the master."""
        return self._log.segment_size

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held yet, so that the log can begin anywhere."""
        return self.begin == self.end

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin where the master's does.

        Raises:
            ReplicationError: no segment can begin there.
        """
        if offset % self.segment_size:
            raise ReplicationError(
                f"The master's log begins at physical offset {offset}, which is not a multiple of "
                f"this store's segment size ({self.segment_size} bytes). Set "
                "mappedFileSizeCommitLog to the master's value."
            )
        with self._following():
            try:
                self._log.remove_unused()
            except StoreWriteError as error:
                raise self._failed(error) from error
            self._log.begin_at(offset)
            self._feed.log_begin = self._held = offset

    def rewind(self) -> None:
        """Erase what is held of a batch that is not whole, and expect the bytes at `end` next.

        Raises:
            RefusedError: the store is closing, or has failed.
        """
        if self._held > self.end:
            with self._following():
                try:
                    self.erase_hidden()
                except StoreWriteError as error:
                    raise self._failed(error) from error

    def erase_hidden(self) -> None:
        """Erase what is held of a batch that is not whole. Needs the append lock, or no appends.

        Raises:
            StoreWriteError: a file could not be written, flushed or removed.
        """
        if self._held > self.end:
            self._log.erase_hidden(self._held)
            self._flusher.flush()  # else old bytes could come back behind new ones after a crash
        self._held, self._batch = self.end, None

    def reconnected(self) -> None:
        """Limit deletions to the log that is held, before a master sends what follows.

        One that lost the end of its log may send records of a new topic there. Deletions that still
        hold are copied again.

        Raises:
            RefusedError: the store is closing, or there is no room for queues.
            StoreWriteError: the file of deletions could not be written.
        """
        with self._following():
            self._store.deleted.settle(self.begin, self.end)

    def append(self, data: U1) -> int:
        """Append what is whole of the bytes that follow those that are held.

        Args:
            data: uint8, contiguous. It must not be changed afterwards.

        Returns:
            The number of bytes appended. An incomplete record is left out.

        Raises:
            ReplicationError: the bytes are not a log, or hold more topics than the store may have;
                nothing was appended.
            RefusedError: nothing was appended. Unless the store has failed or is closed, the same
                call may succeed a little later.
        """
        self._admission.require_alive()
        stamped = check_stamped(data, self._held, self.segment_size)
        if not stamped.size:
            return 0
        begin = self._held
        division = divide(stamped, begin, self._batch)
        routes = {route for part in stamped.parts for route in part.block.routes}
        make_topics(self._store, routes, begin + stamped.size)
        plain = data[: division.plain - begin]
        whole = data[division.plain - begin : division.whole - begin]
        rest = data[division.whole - begin : stamped.size]
        with self._following():
            try:
                self._heed_time(stamped)
            except StoreWriteError as error:
                text = f"The checkpoint cannot be written: {error}"
                raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE) from error
            self._appender.reserve_until(begin + stamped.size)
            reach("replica.before_write")
            try:
                if len(plain):
                    self._append_plain(plain, stamped)
                if len(whole):
                    self._hide(whole)
                    self._publish(whole, stamped)
                if len(rest):
                    self._hide(rest)
            except StoreWriteError as error:
                raise self._failed(error) from error
            self._batch = division.batch
            reach("replica.after_dispatch")
        return stamped.size

    def flush(self) -> int:
        """Flush the log; return the physical offset up to which it is on disk.

        Raises:
            StoreWriteError: the flush failed, and the store accepts nothing more.
        """
        return self._flusher.flush()

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Hold the append lock of a slave's log.

        Raises:
            RefusedError: the store is closing, has failed, or has become the master: nothing of
                another one may get into its log.
        """
        with self._appender.appending(patient=True):
            if not self._store.role.follows:
                raise RefusedError(
                    "The store is the master now, and takes nothing from another one.",
                    "SERVICE_NOT_AVAILABLE",
                )
            yield

    # ---- the log, and batches in it --------------------------------------------------------------

    def _append_plain(self, data: U1, stamped: Stamped) -> None:
        mine = self._part(data, self._held, stamped)
        self._log.copy(data)
        self._held += len(data)
        reach("replica.after_write")
        self._dispatch(mine)

    def _hide(self, data: U1) -> None:
        self._log.copy_hidden(data, self._held)
        self._held += len(data)
        reach("replica.after_hidden")

    def _publish(self, newest: U1, stamped: Stamped) -> None:
        """Show all that is hidden.

        Args:
            newest: uint8, what was hidden last.
            stamped: the records of which those are a part.
        """
        begin = self.end
        self._flusher.flush()
        reach("replica.before_publish")
        self._log.publish(self._held)
        reach("replica.after_write")
        if self.end - begin == len(newest):
            self._dispatch(self._part(newest, begin, stamped))
        else:
            self._dispatch_from_log(begin)

    def _part(self, data: U1, begin: int, stamped: Stamped) -> Stamped:
        """Return the records in a part of what has come."""
        whole = len(data) == stamped.size
        return stamped if whole else check_stamped(data, begin, self.segment_size)

    def _dispatch_from_log(self, begin: int) -> None:
        """Dispatch what was published, which can be larger than memory."""
        with closing(PublishedLog(self._log)) as log:
            while size := min(log.readable(begin), _READ_AT_ONCE):
                stamped = self._read_back(log, begin, size)
                self._dispatch(stamped)
                begin += stamped.size

    def _read_back(self, log: PublishedLog, begin: int, size: int) -> Stamped:
        data, cause = np.empty(size, np.uint8), "no record begins there"
        try:
            log.read_into(begin, [data.data])
            stamped = check_stamped(data, begin, self.segment_size)
            if stamped.size:
                return stamped
        except (OSError, RmqStoreError) as error:
            cause = str(error)
        raise StoreWriteError(
            f"What was written to the CommitLog at physical offset {begin} cannot be read back: "
            f"{cause}"
        )

    def _dispatch(self, stamped: Stamped) -> None:
        for part in stamped.parts:
            self.newest = last_time(part)
            self._appender.published(self.newest)
            self._appender.dispatch(Copied(part, self._feed))

    def _failed(self, error: StoreWriteError) -> RefusedError:
        self._health.fail(error)
        return RefusedError(str(error), PutStatus.SERVICE_NOT_AVAILABLE)

    # ---- times -----------------------------------------------------------------------------------

    def _heed_time(self, stamped: Stamped) -> None:
        """Lower the checkpoint's times if the master's clock went back.

        The checkpoint says that all messages up to a time are on disk. Messages that get an
        earlier time are not.
        """
        first = min((int(part.records.store_timestamp.min()) for part in stamped.parts), default=0)
        if not stamped.parts or first >= self._log.last_timestamp:
            return
        self._flusher.lower_time(max(first - 1, 0))
