"""Stores what producers send: all that is given together is one block, one append, and one flush.

Upstream: SendMessageProcessor. Unlike it, this looks at the permission of the topic.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.messages import (
    Send,
    is_transactional,
    joined_properties,
    limits_text,
    split_batch,
    stored_properties,
)
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.broker.core.statistics import TOPIC_PUT_NUMS, Statistics
from rmqstore_spark.engine.append.appender import SinglePlace
from rmqstore_spark.engine.append.commit import HeldUpError
from rmqstore_spark.engine.append.later_puts import Awaits, LaterPuts
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.layout.constants import (
    MAX_PROPERTIES_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CLUSTER,
    PROPERTY_SEPARATOR,
    PROPERTY_TRAN_MSG,
    RETRY_GROUP_TOPIC_PREFIX,
    TRANSACTION_MASK,
    topic_fault,
)
from rmqstore_spark.layout.record.block import Block
from rmqstore_spark.layout.record.encode import MessageFields, encode_alike, encode_messages
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.record.single import SingleRecord
from rmqstore_spark.layout.spans import I4, U1, Spans, binary_array

_BUSY: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
_LAST: Final = PROPERTY_SEPARATOR.encode()
_TRANSACTIONAL: Final = PROPERTY_TRAN_MSG.encode()

_REASONS: Final = {
    PutStatus.SERVICE_NOT_AVAILABLE: Reason.UNAVAILABLE,
    PutStatus.CREATE_MAPEDFILE_FAILED: Reason.WRONG,
    PutStatus.MESSAGE_ILLEGAL: Reason.ILLEGAL_MESSAGE,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: Reason.ILLEGAL_MESSAGE,
    PutStatus.OS_PAGECACHE_BUSY: Reason.WRONG,
    PutStatus.TOPIC_NOT_EXIST: Reason.NO_TOPIC,
    PutStatus.NO_PERMISSION: Reason.NOT_PERMITTED,
}


def refusal(result: PutResult) -> Refusal:
    """Return why messages are not stored."""
    remark = _BUSY if result.status is PutStatus.OS_PAGECACHE_BUSY else result.remark
    return Refusal(_REASONS[result.status], remark)


class Producing:
    """Stores messages of producers. Thread-safe.

    Args:
        store: the store.
        catalog: its topics and groups.
        statistics: count the messages; then one thread at a time stores them.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, statistics: Statistics) -> None:
        self._store = store
        self._catalog = catalog
        self._statistics = statistics
        config = store.config
        self._max_body = config.max_message_size
        self._cluster = config.broker_cluster_name
        self._lead = f"{PROPERTY_CLUSTER}{NAME_VALUE_SEPARATOR}{self._cluster}".encode()
        self._host = config.host[0]
        self._waits_for_all = config.flush_disk_type == "SYNC_FLUSH" or self.puts_later is not None

    @property
    def would_wait(self) -> bool:
        """Whether storing waits now: for the disk, for other members, or for other puts."""
        store = self._store
        return self._waits_for_all or store.role.waits_for_slaves or store.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether storing waits for other puts now."""
        return self._store.is_busy

    @property
    def puts_later(self) -> LaterPuts | None:
        """Puts whose outcome is told later; None if each waits for it."""
        return self._store.puts.later

    @property
    def held_topics(self) -> frozenset[str]:
        """The topics whose messages wait for a commit; see `StoreWriter.held_topics`."""
        return self._store.held_topics

    def needs_no_topic(self, name: str) -> bool:
        """Return whether a send to a topic surely creates none, and no dead letters' either."""
        return name in self._store.topics and not name.startswith(RETRY_GROUP_TOPIC_PREFIX)

    def make_topics(self, send: Send) -> None:
        """Create the topics that a send needs; if it cannot have them, `accept` tells why."""
        with suppress(Refusal):
            self._catalog.topic_to_send(send.topic, send.default_topic, send.queue_nums)
            if send.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                self._is_dead(send)

    # ---- from requests to records

    def accept(self, send: Send, peer: str) -> Send:
        """Check a message, and say where it goes and how it is stored.

        Args:
            send: the message, which is changed.
            peer: address of the producer.

        Raises:
            Refusal: it cannot be stored.
        """
        self._check(send, peer)
        is_half = PROPERTY_TRAN_MSG in send.properties and is_transactional(send.properties)
        if is_half:
            self._check_half()
            send.is_half = True
            send.sys_flag &= ~TRANSACTION_MASK
        is_dead = send.topic.startswith(RETRY_GROUP_TOPIC_PREFIX) and self._is_dead(send)
        send.stored_properties = stored_properties(
            send.properties, self._cluster, self._max_body, is_dead=is_dead, is_half=is_half
        )
        return send

    def accept_batch(self, send: Send, peer: str) -> Send:
        """Check a batch as `accept` does, and encode its messages."""
        self._check(send, peer)
        self._encode_batch(send)
        return send

    def _check(self, send: Send, peer: str) -> None:
        send.peer = peer
        topic = self._catalog.topic_to_send(send.topic, send.default_topic, send.queue_nums)
        queues = topic.write_queue_nums
        if send.queue_id >= queues:
            raise Refusal(
                Reason.WRONG,
                f"request queueId[{send.queue_id}] is illegal, TopicConfig "
                f"[topicName={topic.name}, readQueueNums={topic.read_queue_nums}, "
                f"writeQueueNums={queues}, perm={topic.perm}] Producer: {peer}",
            )
        if len(send.body) > self._max_body:
            raise Refusal(Reason.ILLEGAL_MESSAGE, limits_text(self._max_body))
        if send.queue_id < 0:
            send.queue_id = random.randrange(queues)  # noqa: S311 - any queue will do
        send.told_queue = send.queue_id

    def _check_half(self) -> None:
        if self._store.config.reject_transaction_message:
            raise Refusal(
                Reason.NOT_PERMITTED,
                f"the broker[{self._store.config.broker_ip1}] sending transaction message is "
                "forbidden (rejectTransactionMessage)",
            )

    def _is_dead(self, send: Send) -> bool:
        """Send a message of a group's retries to its dead letters if it was consumed too often."""
        group = self._catalog.group(send.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
        most = send.most_times if send.most_times >= 0 else group.retry_times
        if send.reconsume_times < most:
            return False
        send.topic, send.queue_id = self._catalog.dead_topic(group).name, 0
        return True

    def _encode_batch(self, send: Send) -> None:
        if send.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            raise Refusal(
                Reason.ILLEGAL_MESSAGE, "a batch cannot go to the topic of a group's retries"
            )
        body = send.body
        batch = split_batch(body, self._store.config.max_block_rows)
        count = len(batch.flags)
        shared = _LAST.join(
            filter(None, (send.properties.encode("utf-8", "replace").rstrip(_LAST), self._lead))
        )
        properties = joined_properties(batch.properties, shared)
        if np.diff(properties[0]).max() > MAX_PROPERTIES_LENGTH:
            raise Refusal(Reason.ILLEGAL_MESSAGE, limits_text(self._max_body))
        if any(_TRANSACTIONAL in part for part in (body, shared)) and _has_half(properties):
            raise Refusal(
                Reason.ILLEGAL_MESSAGE,
                f"a batch cannot hold transactional messages ({PROPERTY_TRAN_MSG}): send them one "
                "by one",
            )
        alike = MessageFields(
            send.topic.encode(),
            b"",
            b"",
            send.peer,
            send.born,
            send.queue_id,
            0,
            send.sys_flag,
            send.reconsume_times,
        )
        records = encode_alike(alike, batch.flags, batch.bodies.texts(), properties, self._host)
        send.data, send.rows = records.data, count

    def _singles(self, sends: Sequence[Send]) -> U1:
        """Encode messages that came one by one."""
        messages = []
        for send in sends:
            message = MessageFields(
                send.topic.encode(),
                send.body,
                send.stored_properties,
                send.peer,
                send.born,
                send.queue_id,
                send.flag,
                send.sys_flag,
                send.reconsume_times,
            )
            messages.append(message)
        return encode_messages(messages, self._host).data

    # ---- from records to the log

    def store(
        self, sends: Sequence[Send], *, are_halves: bool = False, patient: bool = True
    ) -> None:
        """Store what was accepted, and note at each what has become of it.

        Args:
            sends: one or more.
            are_halves: whether these are half messages; no others are among them.
            patient: wait for a commit of a batch. If False, those that it holds up are not stored.
        """
        puts = self._store.transactions.puts if are_halves else self._store.puts
        blocks = list[U1]()
        for is_single, run in groupby(sends, key=lambda send: send.data is None):
            if is_single:
                blocks.append(self._singles(list(run)))
            else:
                blocks += [send.data for send in run if send.data is not None]
        rows = sum(send.rows for send in sends)
        config = self._store.config
        if sum(map(len, blocks)) <= config.max_block_bytes and rows <= config.max_block_rows:
            data = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            # The messages of a batch stay together.
            units = [send.rows for send in sends] if rows > len(sends) else None
            try:
                result = puts.put(data, units=units, patient=patient)
            except HeldUpError as error:
                self._store_free(sends, error.rows, are_halves)
                return
            if result.status.is_stored or result.status.is_transient or len(sends) == 1:
                self._note(sends, result)
                return
        # One of them cannot be stored, or they are too many: each gets an outcome of its own.
        pieces = [self._singles([send]) if send.data is None else send.data for send in sends]
        results = puts.put_all(pieces, are_units=True)
        for at, send in enumerate(sends):
            self._note([send], results[min(at, len(results) - 1)])

    def _store_free(
        self, sends: Sequence[Send], held: npt.NDArray[np.bool_], are_halves: bool
    ) -> None:
        """Store what no commit holds up; note at the others that one does.

        Args:
            sends: what was to be stored.
            held: of each of their messages, in order, whether one holds it up.
            are_halves: see `store`.
        """
        free, first = list[Send](), 0
        for send in sends:
            send.is_held = bool(held[first : first + send.rows].any())
            first += send.rows
            if not send.is_held:
                free.append(send)
        if free:
            self.store(free, are_halves=are_halves, patient=False)

    def store_written(
        self,
        block: Block,
        topics: Mapping[str, tuple[int, int]],
        *,
        patient: bool,
        later: Awaits | None = None,
    ) -> PutResult:
        """Store records of messages that went to topics which take them.

        Args:
            block: the records, at least one; see `Admission.written`.
            topics: how many messages, and how many requests, are for each topic.
            patient: wait for a commit to the same queues.
            later: takes the outcome, if the put is PUT_OK here; see `puts_later`.

        Raises:
            HeldUpError: there is one, and the caller is not patient.
        """
        result = self._store.put_written(block, patient=patient, later=later)
        if result.status.is_stored:
            for topic, (messages, requests) in topics.items():
                self._statistics.count(TOPIC_PUT_NUMS, topic, messages, requests)
        return result

    def store_single(self, record: SingleRecord) -> SinglePlace | PutResult | None:
        """Store the record of a message; see `StoreWriter.put_single`."""
        found = self._store.put_single(record)
        if found is not None and (isinstance(found, SinglePlace) or found.status.is_stored):
            self._statistics.count(TOPIC_PUT_NUMS, record.route.topic, 1)
        return found

    def queues_later(self) -> AbstractContextManager[None]:
        """Store messages before they are in the queues; see `StoreWriter.queues_later`."""
        return self._store.queues_later()

    def fill_queues(self) -> None:
        """Put the last messages into the queues; see `queues_later`."""
        self._store.fill_queues()

    def open_queues(self, name: str) -> int:
        """Return how many queues of a topic take messages; 0 if it takes none as they come."""
        found = self._store.topics.get(name)
        is_open = found is not None and found.is_writable and self.needs_no_topic(name)
        return found.write_queue_nums if found and is_open and topic_fault(name) is None else 0

    def _note(self, sends: Sequence[Send], result: PutResult) -> None:
        if not result.status.is_stored:
            error = refusal(result)
            for send in sends:
                send.refusal = error
            return
        ids, offsets = result.msg_ids(), result.queue_offset.tolist()
        at = 0
        for send in sends:
            send.status, send.remark, send.offset = result.status, result.remark, offsets[at]
            send.msg_ids = ids[at] if send.rows == 1 else ",".join(ids[at : at + send.rows])
            at += send.rows
            if not send.is_half:
                self._statistics.count(TOPIC_PUT_NUMS, send.topic, send.rows)


def _has_half(properties: tuple[I4, U1]) -> bool:
    """Return whether a message with one of these properties belongs to a transaction."""
    offsets, data = properties
    spans = Spans(data, offsets[:-1].astype(np.int64), np.diff(offsets))
    found = find_properties(spans, (PROPERTY_TRAN_MSG,))[PROPERTY_TRAN_MSG]
    return any(text.lower() == b"true" for text in binary_array(found).drop_null().to_pylist())
