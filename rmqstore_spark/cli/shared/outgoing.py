"""Encodes messages from stdin: a group of messages becomes a block of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rmqstore_spark.cli.shared.incoming import Message
from rmqstore_spark.errors import OptionError, RowError
from rmqstore_spark.layout.record.properties import MAP_TYPE
from rmqstore_spark.produce.encoder import MessageEncoder
from rmqstore_spark.produce.queue_choice import Queues, Router

if TYPE_CHECKING:
    from rmqstore_spark.layout.spans import U1
    from rmqstore_spark.wire.messages import OpenReply, TopicSettings


class LineEncoder:
    """Encodes blocks for one store.

    Args:
        store: the store's reply to the open request.
    """

    def __init__(self, store: OpenReply) -> None:
        self.topics: Mapping[str, TopicSettings] = store.topics
        self._most_bytes = store.max_message_size
        self._store_host_v6 = store.store_host_v6
        self._encoder = MessageEncoder(Router(self._queues))

    def block(self, messages: Sequence[Message], first: int) -> U1:
        """Encode messages as a block of contiguous records.

        Args:
            messages: n messages.
            first: number of the first one's line, for errors.

        Raises:
            OptionError: a message cannot be stored.
        """
        for number, message in enumerate(messages, first):
            self._check(message, number)
        columns = {
            "topic": pa.array([m.topic for m in messages], pa.string()),
            "queueId": pa.array([m.queue_id for m in messages], pa.int64()),
            "shardingKey": pa.array([m.sharding_key for m in messages], pa.string()),
            "keys": pa.array([m.keys or None for m in messages], pa.string()),
            "tags": pa.array([m.tags for m in messages], pa.string()),
            "properties": pa.array(
                [list((m.properties or {}).items()) for m in messages], MAP_TYPE
            ),
            "flag": pa.array([m.flag for m in messages], pa.int64()),
            "delayTimeLevel": pa.array([m.delay_level for m in messages], pa.int64()),
            "bornTimestamp": pa.array([m.born_timestamp for m in messages], pa.int64()),
            "body": pa.array([m.body for m in messages], pa.binary()),
        }
        try:
            ready = self._encoder.prepare(columns)
        except RowError as error:
            raise OptionError(f"Line {first + error.row} of stdin {error.cause}.") from None
        return ready.encode(store_host_v6=self._store_host_v6).data

    def _queues(self, topic: str) -> Queues:
        return Queues.of([self.topics[topic].write_queue_nums])

    def _check(self, message: Message, number: int) -> None:
        if len(message.body) > self._most_bytes:
            raise OptionError(
                f"Line {number} of stdin has a body of {len(message.body)} bytes; the store "
                f"accepts at most {self._most_bytes} (maxMessageSize)."
            )
        count = self.topics[message.topic].write_queue_nums
        if message.queue_id is not None and message.queue_id >= count:
            raise OptionError(
                f"Line {number} of stdin is for queue {message.queue_id} of topic "
                f"{message.topic}, which has {count}: 0 to {count - 1}. Add queues with "
                f"`rmqstore create-topic ENDPOINT {message.topic} --queues N`."
            )
