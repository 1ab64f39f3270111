"""Messages that carry their own number, so that each can be told lost, doubled or out of order.

Message `n` goes to queue `n % 4` of `orders-0` or `orders-1`, has a body that begins with its
number in 12 digits, a key `k<n>`, and tags. The same numbers give the same bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions

TOPICS: Final = ("orders-0", "orders-1")
_QUEUES: Final = 4
_DIGITS: Final = 12


def block(first: int, count: int) -> U1:
    """The encoded records of messages `first` to `first + count`, unstamped."""
    numbers = np.arange(first, first + count)
    return encode_records(
        pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([TOPICS[n // _QUEUES % 2] for n in numbers], pa.string()),
                "queueId": pa.array(numbers % _QUEUES, pa.int32()),
                "queueOffset": pa.array(np.zeros(count), pa.int64()),
                "physicalOffset": pa.array(np.zeros(count), pa.int64()),
                "flag": pa.array(np.zeros(count), pa.int32()),
                "sysFlag": pa.array(np.zeros(count), pa.int32()),
                "bornTimestamp": pa.array(1_700_000_000_000 + numbers, pa.int64()),
                "bornHost": pa.array(["127.0.0.1:40000"] * count, pa.string()),
                "storeTimestamp": pa.array(np.zeros(count), pa.int64()),
                "storeHost": pa.array(["0.0.0.0:0"] * count, pa.string()),
                "reconsumeTimes": pa.array(np.zeros(count), pa.int32()),
                "preparedTransactionOffset": pa.array(np.zeros(count), pa.int64()),
                "body": pa.array([_body(int(n)) for n in numbers], pa.binary()),
                "properties": pa.array(
                    [f"TAGS\x01T{n % 3}\x02KEYS\x01k{n}".encode() for n in numbers], pa.binary()
                ),
            }
        )
    ).data.copy()


def _body(number: int) -> bytes:
    return b"%0*d" % (_DIGITS, number) + b"." * (number * 7919 % 900)


def read_numbers(store: Store) -> dict[tuple[str, int], list[int]]:
    """The numbers of the messages in each queue, in the queue's order."""
    return {
        (queue.topic, queue.queue_id): [
            int(body[:_DIGITS])
            for batch in store.read(
                queue.topic, queue.queue_id, options=ReadOptions(columns=("body",))
            )
            for body in batch["body"].to_pylist()
        ]
        for queue in store.queues()
        if queue.topic in TOPICS
    }
