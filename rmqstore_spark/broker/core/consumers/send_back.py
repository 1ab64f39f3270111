"""Takes messages back that a consumer could not handle: to be consumed again, or given up.

Upstream: SendMessageProcessor.asyncConsumerSendMsgBack.
"""

from __future__ import annotations

import ipaddress
import random
from typing import Final, NamedTuple

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.producing import refusal
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.groups import ConsumerGroup
from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    DLQ_GROUP_TOPIC_PREFIX,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_WAIT,
    RETRY_GROUP_TOPIC_PREFIX,
    STOREHOST_V6_FLAG,
    TRANSACTION_MASK,
)
from rmqstore_spark.layout.record.encode import MessageFields, encode_messages
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import Spans
from rmqstore_spark.remoting.addresses import address_text

_FIRST_LEVEL: Final = 3
_OWN_FLAGS: Final = BORNHOST_V6_FLAG | STOREHOST_V6_FLAG | TRANSACTION_MASK


class Returned(NamedTuple):
    """A message that a consumer could not handle.

    Attributes:
        group: of the consumer.
        place: physical offset of the message.
        delay_level: after which it comes again; 0: the store chooses; negative: never.
        most_times: how often it may come; None: as the group's settings say.
    """

    group: str
    place: int
    delay_level: int
    most_times: int | None


class SendBack:
    """Handles messages that are sent back. Used by one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        reader: of its records.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, reader: QueueReader) -> None:
        self._store = store
        self._catalog = catalog
        self._reader = reader

    def take(self, asked: Returned) -> None:
        """Store a copy of a message for later, or among the dead letters of its group.

        Raises:
            Refusal: it cannot be taken back.
        """
        place, level = asked.place, asked.delay_level
        group = self._catalog.group(asked.group)
        self._catalog.require_writable()
        if group.retry_queues <= 0:
            return
        most = group.retry_times if asked.most_times is None else asked.most_times
        record = self._reader.record(place) if place >= 0 else None
        if record is None:
            raise Refusal(Reason.WRONG, f"look message by offset failed, {place}")
        times = int(record.reconsume_times[0])
        is_dead = times >= most or level < 0
        _check_length(group, is_dead=is_dead)
        topic = self._catalog.dead_topic(group) if is_dead else self._catalog.retry_topic(group)
        if not topic.is_writable:
            raise Refusal(
                Reason.NOT_PERMITTED, f"the topic[{topic.name}] sending message is forbidden"
            )
        delay = 0 if is_dead else level or _FIRST_LEVEL + times
        queue_id = 0 if is_dead else random.randrange(topic.write_queue_nums)  # noqa: S311
        message = MessageFields(
            topic.name.encode(),
            _bytes(record.body),
            self._properties(record, place, delay),
            _born_host(record),
            int(record.born_timestamp[0]),
            queue_id,
            int(record.flag[0]),
            int(record.sys_flag[0]) & ~_OWN_FLAGS,
            times + 1,
        )
        result = self._store.put(encode_messages([message], self._store.config.host[0]).data)
        if not result.status.is_stored:
            error = refusal(result)
            raise Refusal(Reason.WRONG, f"{result.status}: {error.remark}")

    def _properties(self, record: Records, place: int, delay: int) -> bytes:
        parts = _bytes(record.properties).decode("utf-8", "replace").split(PROPERTY_SEPARATOR)
        pairs = (part.partition(NAME_VALUE_SEPARATOR) for part in parts if part)
        properties = {name: value for name, _, value in pairs}
        for name in (PROPERTY_CRC32, PROPERTY_DELAY):
            properties.pop(name, None)
        properties[PROPERTY_WAIT] = "false"  # nobody waits for the copy
        properties.setdefault(PROPERTY_RETRY_TOPIC, _bytes(record.topic).decode())
        msg_id = f"{record.store_host(0).hex().upper()}{place:016X}"
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, msg_id)
        if delay:
            properties[PROPERTY_DELAY] = str(delay)
        text = PROPERTY_SEPARATOR.join(
            f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()
        )
        found = text.encode()
        if len(found) > MAX_PROPERTIES_LENGTH:
            raise Refusal(Reason.ILLEGAL_MESSAGE, "the message has no room for RETRY_TOPIC")
        return found


def _check_length(group: ConsumerGroup, *, is_dead: bool) -> None:
    """Refuse a message for a group whose name is so long that no message can name its topic."""
    prefix = DLQ_GROUP_TOPIC_PREFIX if is_dead else RETRY_GROUP_TOPIC_PREFIX
    if len(prefix + group.name) > MAX_TOPIC_LENGTH:
        raise Refusal(
            Reason.WRONG,
            f"{PutStatus.MESSAGE_ILLEGAL}: {prefix}GROUP may have {MAX_TOPIC_LENGTH} characters, "
            f"so only groups with names of up to {MAX_TOPIC_LENGTH - len(prefix)} can have "
            "messages again",
        )


def _born_host(record: Records) -> str:
    at = int(record.born_host_at[0])
    width = 16 if record.born_host_v6[0] else 4
    data = record.buffer[at : at + width + 4].tobytes()
    return address_text((str(ipaddress.ip_address(data[:width])), int.from_bytes(data[-2:], "big")))


def _bytes(spans: Spans) -> bytes:
    at, length = int(spans.starts[0]), int(spans.lengths[0])
    return spans.buffer[at : at + length].tobytes()
