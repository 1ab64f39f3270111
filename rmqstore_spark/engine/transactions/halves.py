"""Half messages: decides which are accepted, and reads those in the log of an open store.

(Upstream: TransactionalMessageBridge.putHalfMessage.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import OptionError, RefusedError, SegmentExpiredError
from rmqstore_spark.layout.constants import BLANK_SIZE, TRANS_HALF_TOPIC
from rmqstore_spark.layout.fields import MIN_RECORD_SIZE
from rmqstore_spark.layout.record.block import Block
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.record.half import hold
from rmqstore_spark.layout.spans import I8, U1
from rmqstore_spark.reader.transactions import Transaction, transactions_of


class HalfAdmission:
    """Accepts blocks of transactional messages, and turns them into half messages.

    Args:
        store: the open store.
        admission: decides whether the store and their topics accept them.
        check_room: raises RefusedError if too many wait, or it is not known what waits.
    """

    def __init__(
        self, store: OpenStore, admission: Admission, check_room: Callable[[Block], None]
    ) -> None:
        self._admission = admission
        self._topics = store.topics
        self._is_rejecting = store.config.reject_transaction_message
        self._most_bytes = store.log.segment_size - BLANK_SIZE
        self._check_room = check_room

    def check(self, data: U1) -> Block:
        """Return a client's block as half messages.

        Raises:
            BlockError: a record is invalid, or no transactional message.
            RefusedError: the store or a topic accepts no such messages, or too many wait.
        """
        if self._is_rejecting:
            raise RefusedError(
                "The store takes no transactional messages (rejectTransactionMessage).",
                PutStatus.NO_PERMISSION,
            )
        block = hold(self._admission.check_clients(data), most_bytes=self._most_bytes)
        self._check_room(block)
        try:
            self._topics.restore([(TRANS_HALF_TOPIC, 0)])
        except OptionError as error:
            raise RefusedError(
                f"No half message can be stored: {error}", PutStatus.MESSAGE_ILLEGAL
            ) from error
        return block


class HalfLog:
    """The half messages of a store. Used under a lock.

    Args:
        store: the open store.
    """

    def __init__(self, store: OpenStore) -> None:
        self._queues = store.queues
        self._log = PublishedLog(store.log)

    def read(self, waiting: Sequence[Transaction]) -> tuple[U1, I8]:
        """Return a buffer with the newest half messages of n transactions, and their positions.

        Raises:
            RefusedError: one has expired.
        """
        places = [one.place for one in waiting]
        return self._read([at.physical_offset for at in places], [at.size for at in places])

    def find(self, half: HalfId) -> Transaction | None:
        """Return the half message at a place that a client names; None if there is none."""
        at, offset = half.physical_offset, half.queue_offset
        begin = self._queues.min_offset(TRANS_HALF_TOPIC, 0)
        if not begin <= offset < self._queues.max_offset(TRANS_HALF_TOPIC, 0):
            return None
        entry = self._queues.read(TRANS_HALF_TOPIC, 0, offset, 1)
        if not len(entry) or int(entry["physicalOffset"][0]) != at:
            return None
        size = int(entry["size"][0])
        if size < MIN_RECORD_SIZE or self._log.readable(at) < size:
            return None
        records = decode_records(*self._read([at], [size]), np.array([size], np.int32))
        found = transactions_of(records, np.array([offset])) if records.status[0] == 0 else []
        return found[0] if found else None

    def _read(self, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[U1, I8]:
        try:
            return self._log.read_spans(np.array(offsets, np.int64), np.array(sizes, np.int32))
        except SegmentExpiredError as error:
            raise RefusedError(
                f"A half message cannot be read: {error}", PutStatus.SERVICE_NOT_AVAILABLE
            ) from error

    def close(self) -> None:
        """Close the file that was read last."""
        self._log.close()
