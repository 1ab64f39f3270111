"""Whether records are those that entries of queues claim, by both kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.record.columns import Identity, build_batch
from rmqstore_spark.layout.record.dispatches import are_as_claimed, belongs_to
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.layout.spans import text_pool
from tests.support.messages.strategies import RECORDS
from tests.support.stores.golden import RecordReport
from tests.support.stores.records import record_batch

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def decoded(messages: list[RecordReport]) -> Records:
    encoded = encode_records(record_batch(messages))
    return decode_records(encoded.data, encoded.starts, encoded.sizes)


def claimed(messages: list[RecordReport]) -> Identity:
    """The queues of messages, one after the other, and the place of each in its queue."""
    queues = sorted({(message.topic, message.queue_id) for message in messages})
    return Identity(
        text_pool([topic for topic, _ in queues]),
        np.array([queue_id for _, queue_id in queues], np.int32),
        np.array([queues.index((m.topic, m.queue_id)) for m in messages], np.int32),
        np.array([message.queue_offset for message in messages], np.int64),
    )


@both_kernels
@given(
    messages=st.lists(RECORDS, min_size=1, max_size=8),
    row=st.integers(0, 7),
    field=st.sampled_from(["", "offset", "size", "slot", "queue_id", "topic", "status"]),
)
def test_each_field_of_a_claim_counts(
    messages: list[RecordReport], row: int, field: str, each_kernel: str
) -> None:
    records, identity = decoded(messages), claimed(messages)
    row %= len(messages)
    offsets, sizes = records.physical_offset.copy(), records.store_size.copy()
    if field == "offset":
        offsets[row] ^= 1
    elif field == "size":
        sizes[row] ^= 1
    elif field == "slot":
        identity.queue_offset[row] ^= 1
    elif field == "queue_id":
        identity.queue_ids[identity.queue[row]] ^= 1
    elif field == "topic":
        assume(messages[row].topic)
        buffer = identity.topics.buffer.copy()
        buffer[identity.topics.starts[identity.queue[row]]] ^= 1
        identity = replace(identity, topics=replace(identity.topics, buffer=buffer))
    elif field == "status":
        records.ints[13, row] = 1
    assert are_as_claimed(records, identity, offsets, sizes) is (field == "")
    if field in ("", "slot", "queue_id", "topic"):
        assert belongs_to(records, identity).all() == (field == "")


@pytest.mark.threat("The compiled kernel stays within its buffers")
@pytest.mark.parametrize("queue", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_queue_that_is_not_there_is_refused(queue: int, each_kernel: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        kernel.active.as_claimed(*arguments(queue=np.array([queue], np.int32)))


@pytest.mark.threat("The compiled kernel stays within its buffers")
@pytest.mark.parametrize(
    "changes",
    [
        {"topic_lengths": np.array([9], np.int32)},
        {"topic_starts": np.array([-1], np.int64)},
        {"positions": np.array([1 << 40], np.int64)},
        {"positions": np.array([-1], np.int64)},
    ],
)
def test_a_topic_outside_its_buffer_is_refused(changes: dict[str, Any], each_kernel: str) -> None:
    assert kernel.active.as_claimed(*arguments())
    with pytest.raises(ValueError, match="outside"):
        kernel.active.as_claimed(*arguments(**changes))


def arguments(**changes: Any) -> list[Any]:
    """A record of topic `abcd`, and the queue that claims it."""
    text = np.frombuffer(b"abcd", np.uint8)
    ints = np.zeros((14, 1), np.int32)
    ints[10] = 4
    known = {
        "buffer": text, "positions": np.zeros(1, np.int64), "longs": np.zeros((5, 1), np.int64),
        "ints": ints, "offsets": np.zeros(1, np.int64), "sizes": np.zeros(1, np.int32),
        "slots": np.zeros(1, np.int64), "queue": np.zeros(1, np.int32), "topics": text,
        "topic_starts": np.zeros(1, np.int64), "topic_lengths": np.array([4], np.int32),
        "queue_ids": np.zeros(1, np.int32),
    }  # fmt: skip
    return list((known | changes).values())


@pytest.mark.parametrize("topics", [["a", "a"], ["a", "b"], ["\ufffd"]])
def test_the_topic_of_a_row_is_that_of_its_queue(topics: list[str], each_kernel: str) -> None:
    records = decode_records(
        np.zeros(91, np.uint8), np.zeros(5, np.int64), np.full(5, 91, np.int32)
    )
    queue = np.arange(5, dtype=np.int32) % len(topics)
    identity = Identity(
        text_pool(topics), np.arange(len(topics), dtype=np.int32), queue, np.arange(5)
    )
    batch = build_batch(records, ["topic", "queueId"], broker="b", identity=identity)
    batch.validate(full=True)
    assert batch.column("topic").to_pylist() == [topics[number] for number in queue]
    assert batch.column("queueId").to_pylist() == queue.tolist()
