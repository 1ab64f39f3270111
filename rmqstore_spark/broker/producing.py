"""Stores what producers send: all that has gathered is one block, one append, and one flush.

Upstream: SendMessageProcessor. Unlike it, this looks at the permission of the topic.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.new_topics import NewTopics
from rmqstore_spark.broker.sends import (
    SendHeader,
    is_transactional,
    joined_properties,
    limits_text,
    named_topic,
    read_header,
    split_batch,
    stored_properties,
)
from rmqstore_spark.broker.statistics import TOPIC_PUT_NUMS, Statistics
from rmqstore_spark.broker.worker import Worker, take_requests
from rmqstore_spark.engine.append.puts import Puts
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.layout.constants import (
    MAX_PROPERTIES_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CLUSTER,
    PROPERTY_SEPARATOR,
    PROPERTY_TRAN_MSG,
    RETRY_GROUP_TOPIC_PREFIX,
    TRANSACTION_MASK,
)
from rmqstore_spark.layout.record.encode import MessageFields, encode_alike, encode_messages
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, U1, Spans, binary_array
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.connection import Request
from rmqstore_spark.status import PutStatus

__all__ = ["Producing", "refusal"]

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 10_000
"""Requests that may wait to be stored, as many as a broker's `sendThreadPoolQueueCapacity`."""
_TOPIC_PATIENCE: Final = 3.0
"""Seconds that a send may wait for its topic: as long as for the lock of RocketMQ's table."""
_MOST_BYTES: Final = 4 << 20
"""Bytes of requests that are stored at once, if there is more than one."""
_BUSY: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
_TOO_LATE: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
_FAILED: Final = "the send failed because of an error in the broker; its log says more"
_REGION: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""What a broker adds to the answer of every send."""
_LAST: Final = PROPERTY_SEPARATOR.encode()
_TRANSACTIONAL: Final = PROPERTY_TRAN_MSG.encode()

_CODES: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_MAPEDFILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGECACHE_BUSY: ResponseCode.SYSTEM_ERROR,
    PutStatus.TOPIC_NOT_EXIST: ResponseCode.TOPIC_NOT_EXIST,
    PutStatus.NO_PERMISSION: ResponseCode.NO_PERMISSION,
}


def refusal(result: PutResult) -> RemotingError:
    """Return the answer to messages that are not stored."""
    if result.status is PutStatus.OS_PAGECACHE_BUSY:
        return RemotingError(ResponseCode.SYSTEM_ERROR, _BUSY)
    return RemotingError(_CODES[result.status], result.remark)


@dataclass(slots=True)
class _Send:
    """A request whose messages can be stored.

    Attributes:
        request: the request.
        header: its header; topic and queueId are those that the messages get.
        queue_id: the queue that the answer names.
        properties: of a single message, as they are stored.
        is_half: whether its message waits for the end of a transaction.
        data: the records of a batch.
        rows: how many messages it has.
    """

    request: Request
    header: SendHeader
    queue_id: int
    properties: bytes = b""
    is_half: bool = False
    data: U1 | None = None
    rows: int = 1


class Producing:
    """Stores messages of producers: in the thread that has read them, or in one of its own.

    The first is faster, and the second is for what has to wait: for the disk, for slaves, for
    other puts, and for requests that came before. Those that need a topic wait in a third.

    Args:
        store: the store.
        catalog: its topics and groups.
        statistics: count the messages.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, statistics: Statistics) -> None:
        self._store = store
        self._catalog = catalog
        self._statistics = statistics
        config = store.config
        self._max_body = config.max_message_size
        self._patience = config.wait_time_mills_in_send_queue / 1000
        self._cluster = config.broker_cluster_name
        self._lead = f"{PROPERTY_CLUSTER}{NAME_VALUE_SEPARATOR}{self._cluster}".encode()
        self._host = config.host[0]
        self._waits_for_disk = config.flush_disk_type == "SYNC_FLUSH"
        patience = max(self._patience, _TOPIC_PATIENCE)
        self._new_topics = NewTopics(
            catalog,
            self._make_topics,
            lambda requests: self._handle_all(requests, patience),
            _MOST_WAITING,
        )
        self._worker: Worker[Request] = Worker("rmqstore-send", self)
        self._worker.start()

    def __len__(self) -> int:
        return len(self._worker) + len(self._new_topics)

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests to send that arrived together; see `dispatch.GroupHandler`."""
        new = [request for request in requests if not self._needs_no_topic(request)]
        if new:
            self._new_topics.take(new)
            requests = [request for request in requests if request not in set(new)]
        if not requests:
            return
        waits = self._waits_for_disk or self._store.role.waits_for_slaves
        if not waits and self._worker.is_idle and not self._store.is_busy:
            self.handle(requests)
        else:
            take_requests(self._worker, requests, _MOST_WAITING)

    def _needs_no_topic(self, request: Request) -> bool:
        """Return whether a request surely creates no topic, neither its own nor a dead letters'."""
        name = named_topic(request.command)
        return (
            name in self._store.topics
            and not name.startswith(RETRY_GROUP_TOPIC_PREFIX)
            and name not in self._new_topics
        )

    def _make_topics(self, request: Request) -> None:
        """Create the topics that a request needs; if it cannot have them, storing it tells why."""
        with suppress(RemotingError):
            header = read_header(request.command)
            self._catalog.topic_to_send(header.topic, header.default_topic, header.queue_nums)
            self._is_dead(header)

    def close(self) -> None:
        """Store what waits, and end the threads."""
        self._new_topics.close()
        self._worker.close()

    def handle(self, jobs: Sequence[Request]) -> None:
        """Store the messages of requests, and answer them."""
        self._handle_all(jobs, self._patience)

    def _handle_all(self, jobs: Sequence[Request], patience: float) -> None:
        try:
            self._handle(jobs, patience)
        except BaseException:
            for request in jobs:  # those that have an answer get no other
                _refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, _FAILED))
            raise

    def _handle(self, jobs: Sequence[Request], patience: float) -> None:
        group: list[_Send] = []
        size = 0
        for request in jobs:
            if group and size + request.command.size > _MOST_BYTES:
                self._store_all(group)
                group, size = [], 0
            try:
                self._check_wait(request, patience)
                group.append(self._read(request))
                size += request.command.size
            except RemotingError as error:
                _refuse(request, error)
            except Exception:  # noqa: BLE001 - one must not fail those of other clients
                _log.exception("A send failed.")
                _refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, _FAILED))
        if group:
            self._store_all(group)

    def _check_wait(self, request: Request, patience: float) -> None:
        """Refuse a request whose client waits for an answer no more, and sends it again."""
        waited = time.monotonic() - request.arrived
        if waited > patience and not request.command.is_one_way:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"{_TOO_LATE}, period in queue: {waited * 1000:.0f}ms, size of queue: {len(self)}",
            )

    def _store_all(self, sends: Sequence[_Send]) -> None:
        """Store messages, and half messages: of each kind, all at once."""
        for is_half, puts in ((False, self._store), (True, self._store.transactions.puts)):
            of_kind = [send for send in sends if send.is_half == is_half]
            if of_kind:
                self._put_all(puts, of_kind)

    # ---- from requests to records

    def _read(self, request: Request) -> _Send:
        command = request.command
        header = read_header(command)
        topic = self._catalog.topic_to_send(header.topic, header.default_topic, header.queue_nums)
        queues = topic.write_queue_nums
        if header.queue_id >= queues:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, TopicConfig "
                f"[topicName={topic.name}, readQueueNums={topic.read_queue_nums}, "
                f"writeQueueNums={queues}, perm={topic.perm}] Producer: {request.connection.peer}",
            )
        if len(command.body) > self._max_body:
            raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, limits_text(self._max_body))
        if header.queue_id < 0:
            header.queue_id = random.randrange(queues)  # noqa: S311 - any queue will do
        queue_id = header.queue_id
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            return self._batch(request, header)
        is_half = is_transactional(header.properties)
        if is_half:
            self._check_half()
            header.sys_flag &= ~TRANSACTION_MASK
        is_dead = self._is_dead(header)
        properties = stored_properties(
            header, self._cluster, self._max_body, is_dead=is_dead, is_half=is_half
        )
        return _Send(request, header, queue_id, properties, is_half)

    def _check_half(self) -> None:
        if self._store.config.reject_transaction_message:
            raise RemotingError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._store.config.broker_ip1}] sending transaction message is "
                "forbidden (rejectTransactionMessage)",
            )

    def _is_dead(self, header: SendHeader) -> bool:
        """Send a message that was consumed too often to the dead letters of its group."""
        if not header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return False
        group = self._catalog.group(header.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
        most = header.most_times if header.most_times >= 0 else group.retry_times
        if header.reconsume_times < most:
            return False
        header.topic, header.queue_id = self._catalog.dead_topic(group).name, 0
        return True

    def _batch(self, request: Request, header: SendHeader) -> _Send:
        if header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL, "a batch cannot go to the topic of a group's retries"
            )
        body = request.command.body
        batch = split_batch(body, self._store.config.max_block_rows)
        count = len(batch.flags)
        shared = _LAST.join(
            filter(None, (header.properties.encode("utf-8", "replace").rstrip(_LAST), self._lead))
        )
        properties = joined_properties(batch.properties, shared)
        if np.diff(properties[0]).max() > MAX_PROPERTIES_LENGTH:
            raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, limits_text(self._max_body))
        if any(_TRANSACTIONAL in part for part in (body, shared)) and _has_half(properties):
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch cannot hold transactional messages ({PROPERTY_TRAN_MSG}): send them one "
                "by one",
            )
        alike = MessageFields(
            header.topic.encode(),
            b"",
            b"",
            request.connection.peer,
            header.born,
            header.queue_id,
            0,
            header.sys_flag,
            0,
        )
        records = encode_alike(alike, batch.flags, batch.bodies.texts(), properties, self._host)
        return _Send(request, header, header.queue_id, data=records.data, rows=count)

    def _singles(self, sends: Sequence[_Send]) -> U1:
        """Encode messages that came one by one."""
        messages = [
            MessageFields(
                header.topic.encode(),
                send.request.command.body,
                send.properties,
                send.request.connection.peer,
                header.born,
                header.queue_id,
                header.flag,
                header.sys_flag,
                header.reconsume_times,
            )
            for send, header in ((send, send.header) for send in sends)
        ]
        return encode_messages(messages, self._host).data

    # ---- from records to answers

    def _put_all(self, puts: StoreWriter | Puts, sends: Sequence[_Send]) -> None:
        singles = [send for send in sends if send.data is None]
        batches = [send for send in sends if send.data is not None]
        ordered = singles + batches
        parts = [self._singles(singles)] if singles else []
        parts += [send.data for send in batches if send.data is not None]
        units = [send.rows for send in ordered]  # the messages of a batch stay together
        config = self._store.config
        if sum(map(len, parts)) <= config.max_block_bytes and sum(units) <= config.max_block_rows:
            data = parts[0] if len(parts) == 1 else np.concatenate(parts)
            result = puts.put(data, units=units if batches else None)
            if result.status.is_stored or result.status.is_transient or len(ordered) == 1:
                self._answer(ordered, result)
                return
        # One of them cannot be stored, or they are too many: each gets an outcome of its own.
        pieces = [self._singles([send]) if send.data is None else send.data for send in ordered]
        results = puts.put_all(pieces, are_units=True)
        for at, send in enumerate(ordered):
            self._answer([send], results[min(at, len(results) - 1)])

    def _answer(self, sends: Sequence[_Send], result: PutResult) -> None:
        if not result.status.is_stored:
            error = refusal(result)
            for send in sends:
                _refuse(send.request, error)
            return
        code, remark = _CODES[result.status], result.remark or None
        ids, offsets = result.msg_ids(), result.queue_offset.tolist()
        at = 0
        for send in sends:
            ext = {
                "msgId": ids[at] if send.rows == 1 else ",".join(ids[at : at + send.rows]),
                "queueId": str(send.queue_id),
                "queueOffset": str(offsets[at]),
                **_REGION,
            }
            at += send.rows
            if not send.is_half:
                self._statistics.count(TOPIC_PUT_NUMS, send.header.topic, send.rows)
            send.request.reply(send.request.command.answer(code, remark, ext))


def _refuse(request: Request, error: RemotingError) -> None:
    request.reply(request.command.answer(error.code, error.remark, dict(_REGION)))


def _has_half(properties: tuple[I4, U1]) -> bool:
    """Return whether a message with one of these properties belongs to a transaction."""
    offsets, data = properties
    spans = Spans(data, offsets[:-1].astype(np.int64), np.diff(offsets))
    found = find_properties(spans, (PROPERTY_TRAN_MSG,))[PROPERTY_TRAN_MSG]
    return any(text.lower() == b"true" for text in binary_array(found).drop_null().to_pylist())
