"""Answers questions about offsets: those of queues, and those of consumer groups.

Upstream: ConsumerManageProcessor, AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from typing import Final

from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RemotingError, RmqStoreError
from rmqstore_spark.layout.constants import is_safe_group_name
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_INT, MAX_LONG, Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["Offsets"]

_log = logging.getLogger(__name__)

_NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class Offsets:
    """Answers questions about offsets. Its handlers belong to one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        reader: of its queues.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, reader: QueueReader) -> None:
        self._store = store
        self._table = store.consumer_offsets
        self._catalog = catalog
        self._reader = reader

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of single requests, by code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.GET_MAX_OFFSET: self._most,
            RequestCode.GET_MIN_OFFSET: self._least,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    def save(self) -> None:
        """Write the offsets that consumers have reported. May be called in any thread.

        Raises:
            RemotingError: they could not be written; the next time does it.
        """
        try:
            self._table.save()
        except (RmqStoreError, OSError) as error:
            text = f"the progress of consumer groups could not be written: {error}"
            raise RemotingError(ResponseCode.SYSTEM_ERROR, text) from error

    def save_if_possible(self) -> None:
        """Write the offsets that consumers have reported; log it if that fails."""
        try:
            self.save()
        except RemotingError as error:
            _log.warning("At present, %s", error.remark)

    def _query(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        group, (topic, queue_id) = fields.text("consumerGroup"), _queue(request)
        offset = self._table.get(group, topic, queue_id)
        if offset < 0:
            least, _most = self._reader.range(topic, queue_id)
            if least > 0 or not self._reader.is_resident(topic, queue_id):
                raise RemotingError(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)
            offset = 0
        return _with_offset(request, offset)

    def _update(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        group, (topic, queue_id) = fields.text("consumerGroup"), _queue(request)
        offset = fields.long("commitOffset", -MAX_LONG, MAX_LONG)
        # JavaScript's clients send -1 for what they have not read yet. RocketMQ stores offsets of
        # topics, queues and groups that do not exist too: nobody can ask for them.
        config = self._store.topics.get(topic)
        queues = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        is_known = 0 <= queue_id < queues and is_safe_group_name(group)
        if offset < 0 or not is_known or self._catalog.is_slave:
            return request.answer()
        if not self._table.report(group, topic, queue_id, offset):
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY, "too many groups have offsets; delete some topics"
            )
        return request.answer()

    def _most(self, _: RemotingConnection, request: Command) -> Command:
        return _with_offset(request, self._reader.range(*_queue(request))[1])

    def _least(self, _: RemotingConnection, request: Command) -> Command:
        return _with_offset(request, self._reader.range(*_queue(request))[0])

    def _search(self, _: RemotingConnection, request: Command) -> Command:
        timestamp = Fields(request.ext).long("timestamp", -MAX_LONG, MAX_LONG)
        return _with_offset(request, self._reader.offset_near(*_queue(request), timestamp))

    def _earliest(self, _: RemotingConnection, request: Command) -> Command:
        topic, queue_id = _queue(request)
        least, _most = self._reader.range(topic, queue_id)
        timestamp = self._reader.stored_at(topic, queue_id, least)
        return request.answer(ext={"timestamp": str(timestamp)})


def _queue(request: Command) -> tuple[str, int]:
    fields = Fields(request.ext)
    return fields.text("topic"), fields.long("queueId", -MAX_INT, MAX_INT)


def _with_offset(request: Command, offset: int) -> Command:
    return request.answer(ext={"offset": str(offset)})
