"""Build messages as Arrow columns: the 21 columns of a row, from a batch of records.

Only the requested columns are built. See docs/format.md for the fields of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import (
    MAP_TYPE,
    find_properties,
    split_keys,
    split_properties,
)
from rmqstore_spark.layout.spans import (
    I4,
    I8,
    U1,
    Spans,
    binary_array,
    checked_strings,
    int_array,
    string_array,
)

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

COLUMNS: Final[dict[str, pa.DataType]] = {
    "brokerName": pa.string(),
    "topic": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "msgId": pa.string(),
    "uniqKey": pa.string(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "body": pa.binary(),
    "properties": MAP_TYPE,
    "bornTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "storeTimestamp": TIMESTAMP,
    "storeHost": pa.string(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bodyCRC": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "storeSize": pa.int32(),
}
"""Name and type of each column, in the order of a row."""

_MIN_MILLIS: Final = -62_135_596_800_000  # 0001-01-01
_MAX_MILLIS: Final = 253_402_300_799_999  # 9999-12-31, the last day that Spark prints


@dataclass(frozen=True)
class Identity:
    """Topic, queueId and queueOffset of n messages according to their queues, not their records.

    The two differ for light queues, where one record belongs to several queues.

    Attributes:
        topics: k spans, the topics of k queues.
        queue_ids: k.
        queue: n numbers of queues: indexes into `topics` and `queue_ids`.
        queue_offset: n.
    """

    topics: Spans
    queue_ids: I4
    queue: I4
    queue_offset: I8

    @classmethod
    def of(cls, records: Records) -> Identity:
        """Return the identity that the records themselves hold."""
        return cls.each(records.topic, records.queue_id, records.queue_offset)

    @classmethod
    def each(cls, topic: Spans, queue_id: I4, queue_offset: I8) -> Identity:
        """Return the identity of n messages, given n topics and n queueIds."""
        return cls(topic, queue_id, np.arange(len(queue_id), dtype=np.int32), queue_offset)

    @cached_property
    def topic(self) -> Spans:
        """The topic of each message."""
        return self.topics.take(self.queue.astype(np.int64))

    @cached_property
    def queue_id(self) -> I4:
        """The queueId of each message."""
        return self.queue_ids[self.queue]

    @cached_property
    def one_topic(self) -> str | None:
        """The topic of all messages, if all queues have the same one."""
        first = self.topics.take(np.zeros(len(self.topics), np.int64))
        if not len(first) or not self.topics.equal(first).all():
            return None
        start, length = int(self.topics.starts[0]), int(self.topics.lengths[0])
        return self.topics.buffer[start : start + length].tobytes().decode("utf-8", "replace")

    def take(self, rows: npt.NDArray[np.int64]) -> Identity:
        return Identity(self.topics, self.queue_ids, self.queue[rows], self.queue_offset[rows])


def timestamp_array(millis: I8) -> pa.TimestampArray:
    """Return milliseconds as timestamps; null for a time outside the years 1 to 9999."""
    strange = (millis < _MIN_MILLIS) | (millis > _MAX_MILLIS)
    if strange.any():
        micros = np.where(strange, 0, millis) * 1000
        return pa.array(micros, pa.int64(), mask=strange).cast(TIMESTAMP)
    return pa.Array.from_buffers(TIMESTAMP, len(millis), [None, pa.py_buffer(millis * 1000)])


def _repeated(text: str, n: int) -> pa.StringArray:
    """Repeat a text n times; all batches share slices of one cached array."""
    size = max(n, 1 << 14)
    return _repeat(text, 1 << (size - 1).bit_length())[:n]


@lru_cache(maxsize=4)
def _repeat(text: str, n: int) -> pa.StringArray:
    data = text.encode("utf-8", "replace")
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(len(data))
    return checked_strings(offsets, pa.py_buffer(data * n))


class _Sources:
    """The sources of one batch's columns; values that several columns share are built once."""

    def __init__(
        self,
        records: Records,
        body: Spans,
        identity: Identity,
        broker: str,
        columns: Sequence[str],
    ) -> None:
        self.records = records
        self.body = body
        self.identity = identity
        self.broker = broker
        self._named = tuple(_NAMED[name] for name in columns if name in _NAMED)
        self._wants_all_properties = "properties" in columns

    @cached_property
    def _split(self) -> tuple[pa.MapArray, dict[str, Spans]]:
        return split_properties(self.records.properties, self._named)

    def topic(self) -> pa.StringArray:
        identity, n = self.identity, len(self.records)
        if len(identity.topics) < n and identity.one_topic is not None:
            return _repeated(identity.one_topic, n)
        return string_array(identity.topic)

    def properties(self) -> pa.MapArray:
        return self._split[0]

    @cached_property
    def _found(self) -> dict[str, Spans]:
        if self._wants_all_properties:
            return self._split[1]
        return find_properties(self.records.properties, self._named)

    def named(self, name: str) -> Spans:
        return self._found[name]

    def broker_name(self) -> pa.StringArray:
        return _repeated(self.broker, len(self.records))

    @cached_property
    def _store_host(self) -> tuple[I8, U1]:
        return self.records.store_host_at, self.records.store_host_v6

    def msg_id(self) -> pa.StringArray:
        r, (at, v6) = self.records, self._store_host
        fill = kernel.active.format_msg_ids
        return self._printed(56, lambda o, d: fill(r.buffer, at, v6, r.physical_offset, o, d))

    def born_host(self) -> pa.StringArray:
        return self._host(self.records.born_host_at, self.records.born_host_v6)

    def store_host(self) -> pa.StringArray:
        return self._host(*self._store_host)

    def _host(self, at: I8, v6: U1) -> pa.StringArray:
        fill = kernel.active.format_hosts
        return self._printed(64, lambda o, d: fill(self.records.buffer, at, v6, o, d))

    def _printed(self, width: int, fill: Callable[[I4, U1], object]) -> pa.StringArray:
        n = len(self.records)
        offsets = np.empty(n + 1, np.int32)
        data = pa.allocate_buffer(n * width)
        fill(offsets, np.frombuffer(data, np.uint8))
        return pa.Array.from_buffers(
            pa.string(), n, [None, pa.py_buffer(offsets), data.slice(0, int(offsets[-1]))]
        )


_NAMED: Final = {"uniqKey": PROPERTY_UNIQ_KEY, "tags": PROPERTY_TAGS, "keys": PROPERTY_KEYS}

_BUILDERS: Final[dict[str, Callable[[_Sources], pa.Array | npt.NDArray[Any]]]] = {
    "brokerName": _Sources.broker_name,
    "topic": _Sources.topic,
    "queueId": attrgetter("identity.queue_id"),
    "queueOffset": attrgetter("identity.queue_offset"),
    "physicalOffset": attrgetter("records.physical_offset"),
    "msgId": _Sources.msg_id,
    "uniqKey": lambda s: string_array(s.named(PROPERTY_UNIQ_KEY)),
    "tags": lambda s: string_array(s.named(PROPERTY_TAGS)),
    "keys": lambda s: split_keys(s.named(PROPERTY_KEYS)),
    "body": lambda s: binary_array(s.body),
    "properties": _Sources.properties,
    "bornTimestamp": lambda s: timestamp_array(s.records.born_timestamp),
    "bornHost": _Sources.born_host,
    "storeTimestamp": lambda s: timestamp_array(s.records.store_timestamp),
    "storeHost": _Sources.store_host,
    "flag": attrgetter("records.flag"),
    "sysFlag": attrgetter("records.sys_flag"),
    "bodyCRC": attrgetter("records.body_crc"),
    "reconsumeTimes": attrgetter("records.reconsume_times"),
    "preparedTransactionOffset": attrgetter("records.prepared_transaction_offset"),
    "storeSize": attrgetter("records.store_size"),
}


def build_batch(
    records: Records,
    columns: Sequence[str],
    *,
    broker: str,
    body: Spans | None = None,
    identity: Identity | None = None,
    body_as_text: bool = False,
) -> pa.RecordBatch:
    """Build the requested columns.

    Args:
        records: n sound records.
        columns: names from COLUMNS, in the requested order.
        broker: the broker's name.
        body: n spans that replace the stored bodies (decompressed bodies), if any.
        identity: topic, queueId and queueOffset of each row, if not the records' own.
        body_as_text: build the body as a string column.
    """
    sources = _Sources(
        records,
        records.body if body is None else body,
        Identity.of(records) if identity is None else identity,
        broker,
        columns,
    )
    arrays, fields = [], []
    for name in columns:
        if name == "body" and body_as_text:
            arrays.append(string_array(sources.body))
            fields.append(pa.field(name, pa.string()))
        else:
            built = _BUILDERS[name](sources)
            if isinstance(built, np.ndarray):
                built = int_array(built)
            arrays.append(built)
            fields.append(pa.field(name, COLUMNS[name]))
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.nulls(len(records), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
