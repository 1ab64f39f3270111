"""Encodes messages as records, as a producer's client does: a group of messages becomes a block."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rmqstore_spark.cli.shared.incoming import Message
from rmqstore_spark.errors import OptionError, RowError
from rmqstore_spark.layout.index.hashing import java_hash_code_str
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.record.properties import MAP_TYPE
from rmqstore_spark.produce.properties import join_properties
from rmqstore_spark.produce.uniq_key import UniqKeys, own_address

if TYPE_CHECKING:
    from rmqstore_spark.layout.spans import U1
    from rmqstore_spark.wire.messages import OpenReply, TopicSettings

__all__ = ["MessageEncoder"]


class MessageEncoder:
    """Encodes blocks for one store.

    Args:
        store: the store's reply to the open request.
    """

    def __init__(self, store: OpenReply) -> None:
        self.topics: Mapping[str, TopicSettings] = store.topics
        self._most_bytes = store.max_message_size
        self._store_host = "[::]:0" if store.store_host_v6 else "0.0.0.0:0"
        address = own_address()
        host = str(ipaddress.ip_address(address)) if address else "127.0.0.1"
        self._born_host = f"[{host}]:0" if ":" in host else f"{host}:0"
        self._uniq_keys = UniqKeys(address)
        self._turns: dict[str, int] = {}

    def block(self, messages: Sequence[Message], first: int) -> U1:
        """Encode messages as a block of contiguous records.

        Args:
            messages: n messages.
            first: number of the first one's line, for errors.

        Raises:
            OptionError: a message cannot be stored.
        """
        queues = [self._queue(message, first + row) for row, message in enumerate(messages)]
        now = time.time_ns() // 1_000_000
        count = len(messages)
        try:
            properties = join_properties(
                self._uniq_keys.take(count),
                pa.array([message.keys or None for message in messages], pa.string()),
                pa.array([message.tags for message in messages], pa.string()),
                pa.array([list((m.properties or {}).items()) for m in messages], MAP_TYPE),
            )
        except RowError as error:
            raise OptionError(f"Line {first + error.row} of stdin {error.cause}.") from None
        columns = {
            "topic": [message.topic for message in messages],
            "queueId": queues,
            "queueOffset": [0] * count,
            "physicalOffset": [0] * count,
            "flag": [message.flag for message in messages],
            "sysFlag": [0] * count,
            "bornTimestamp": [
                now if message.born_timestamp is None else message.born_timestamp
                for message in messages
            ],
            "bornHost": [self._born_host] * count,
            "storeTimestamp": [0] * count,
            "storeHost": [self._store_host] * count,
            "reconsumeTimes": [0] * count,
            "preparedTransactionOffset": [0] * count,
            "body": [message.body for message in messages],
            "properties": properties,
        }
        arrays = [pa.array(columns[name], kind) for name, kind in RECORD_COLUMNS.items()]
        return encode_records(pa.RecordBatch.from_arrays(arrays, list(RECORD_COLUMNS))).data

    def _queue(self, message: Message, number: int) -> int:
        if len(message.body) > self._most_bytes:
            raise OptionError(
                f"Line {number} of stdin has a body of {len(message.body)} bytes; the store "
                f"accepts at most {self._most_bytes} (maxMessageSize)."
            )
        count = self.topics[message.topic].write_queue_nums
        if message.queue_id is not None:
            if message.queue_id >= count:
                raise OptionError(
                    f"Line {number} of stdin is for queue {message.queue_id} of topic "
                    f"{message.topic}, which has {count}: 0 to {count - 1}. Add queues with "
                    f"`rmqstore create-topic ENDPOINT {message.topic} --queues N`."
                )
            return message.queue_id
        key = message.sharding_key or message.keys
        if key:
            # As in SelectMessageQueueByHash, with Java's remainder.
            return abs(int(math.fmod(java_hash_code_str(key), count)))
        turn = self._turns.get(message.topic, 0)
        self._turns[message.topic] = turn + 1
        return turn % count
