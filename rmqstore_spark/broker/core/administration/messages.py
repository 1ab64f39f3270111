"""Finds single messages: by place and by key (upstream: QueryMessageProcessor)."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.store import Store

_MOST: Final = 64
"""Most messages of an answer, as a broker's `maxMsgsNumBatch`."""
_UNIQUE_MOST: Final = 32
"""How many a search for a UNIQ_KEY gives, as a broker's `defaultQueryMaxNum`."""
_MOST_BYTES: Final = 8 << 20
"""Bytes of an answer, if it has more than one message."""
_LONGEST_SECONDS: Final = 5.0
"""How long a search may take: as long as mqadmin waits."""
_NONE: Final = "can not find message, maybe time range not correct"


class KeyQuery(NamedTuple):
    """Which messages are wanted.

    Attributes:
        topic, key: of the messages.
        begin, end: when they were stored, in milliseconds.
        most: most messages.
        is_unique: whether the key is one that their producer has made for each.
    """

    topic: str
    key: str
    begin: int
    end: int
    most: int
    is_unique: bool


class FoundMessages(NamedTuple):
    """What a query found.

    Attributes:
        records: the newest first.
        remark: why there are none.
        time, place: up to when, and where in the log, messages were looked for.
    """

    records: bytes
    remark: str
    time: int
    place: int


class MessageQueries:
    """Finds messages. Used by one thread.

    Args:
        store: the store.
        reader: of its records.
    """

    def __init__(self, store: StoreWriter, reader: QueueReader) -> None:
        self._store = store
        self._reader = reader

    def at(self, place: int) -> bytes:
        """Return the record at a physical offset.

        Raises:
            Refusal: there is none.
        """
        record = self._reader.record(place) if place >= 0 else None
        if record is None:
            raise Refusal(Reason.WRONG, f"can not find message by the offset, {place}")
        return record.buffer.tobytes()

    def with_key(self, asked: KeyQuery) -> FoundMessages:
        """Return the newest records that have a key.

        Raises:
            Refusal: the search failed, or took too long.
        """
        most = _UNIQUE_MOST if asked.is_unique else asked.most
        begin, end = asked.begin, asked.end
        found: list[bytes] = []
        has_index = self._store.config.message_index_enable
        if has_index and begin <= end and end >= 0 and most > 0:
            times = max(begin, 0), end
            try:
                found = self._records(asked.topic, asked.key, times, min(most, _MOST))
            except RmqStoreError as error:
                raise Refusal(Reason.WRONG, str(error)) from error
        remark = _NONE if has_index else f"{_NONE}; the store has no index (messageIndexEnable)"
        return FoundMessages(
            b"".join(found), "" if found else remark, self._store.clock(), self._store.published_end
        )

    def _records(self, topic: str, key: str, times: tuple[int, int], most: int) -> list[bytes]:
        """Return the newest records that have a key, the newest first."""
        deadline = time.monotonic() + _LONGEST_SECONDS

        def look() -> None:
            if time.monotonic() > deadline:
                raise Refusal(Reason.WRONG, f"the search took more than {_LONGEST_SECONDS:g} s")

        begin, end = times
        with Store.open(self._store.path) as store:
            table = query_by_key(
                store, topic, key, begin_ms=begin, end_ms=end, max_num=most,
                options=ReadOptions(columns=("physicalOffset",)), between=look,
            )  # fmt: skip
        places = table["physicalOffset"].to_numpy()
        found: list[bytes] = []
        size = 0
        for place in np.flip(places).tolist():
            record = self._reader.record(place)
            if record is None:  # it has expired meanwhile
                continue
            data = record.buffer.tobytes()
            size += len(data)
            if found and size > _MOST_BYTES:
                break
            found.append(data)
        return found
