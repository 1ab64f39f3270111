"""Finds single messages: by place and by key (upstream: QueryMessageProcessor)."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RemotingError, RmqStoreError
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.store import Store
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_INT, MAX_LONG, Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["MessageQueries"]

_MOST: Final = 64
"""Most messages of an answer, as a broker's `maxMsgsNumBatch`."""
_UNIQUE_MOST: Final = 32
"""How many a search for a UNIQ_KEY gives, as a broker's `defaultQueryMaxNum`."""
_MOST_BYTES: Final = 8 << 20
"""Bytes of an answer, if it has more than one message."""
_LONGEST_SECONDS: Final = 5.0
"""How long a search may take: as long as mqadmin waits."""
_NONE: Final = "can not find message, maybe time range not correct"


class MessageQueries:
    """Finds messages. Its handlers belong to one thread.

    Args:
        store: the store.
        reader: of its records.
    """

    def __init__(self, store: StoreWriter, reader: QueueReader) -> None:
        self._store = store
        self._reader = reader

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of single requests, by code."""
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.QUERY_MESSAGE: self._query,
        }

    def _view(self, _: RemotingConnection, request: Command) -> Command:
        place = Fields(request.ext).long("offset", -MAX_LONG, MAX_LONG)
        record = self._reader.record(place) if place >= 0 else None
        if record is None:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {place}"
            )
        return request.answer(body=record.buffer.tobytes())

    def _query(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        topic, key = fields.text("topic"), fields.text("key")
        begin = fields.long("beginTimestamp", -MAX_LONG, MAX_LONG)
        end = fields.long("endTimestamp", -MAX_LONG, MAX_LONG)
        most = fields.long("maxNum", -MAX_INT, MAX_INT)
        if request.ext.get("_UNIQUE_KEY_QUERY") == "true":
            most = _UNIQUE_MOST
        found: list[bytes] = []
        has_index = self._store.config.message_index_enable
        if has_index and begin <= end and end >= 0 and most > 0:
            try:
                found = self._records(topic, key, (max(begin, 0), end), min(most, _MOST))
            except RmqStoreError as error:
                raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        ext = {
            "indexLastUpdateTimestamp": str(self._store.clock()),
            "indexLastUpdatePhyoffset": str(self._store.published_end),
        }
        if found:
            return request.answer(ext=ext, body=b"".join(found))
        remark = _NONE if has_index else f"{_NONE}; the store has no index (messageIndexEnable)"
        return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, ext)

    def _records(self, topic: str, key: str, times: tuple[int, int], most: int) -> list[bytes]:
        """Return the newest records that have a key, the newest first."""
        deadline = time.monotonic() + _LONGEST_SECONDS

        def look() -> None:
            if time.monotonic() > deadline:
                raise RemotingError(
                    ResponseCode.SYSTEM_ERROR, f"the search took more than {_LONGEST_SECONDS:g} s"
                )

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
