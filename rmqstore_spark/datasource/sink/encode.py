"""Encode Spark's batches as blocks of records for each store."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.datasource.sink.columns import SinkColumns
from rmqstore_spark.datasource.sink.options import SinkOptions
from rmqstore_spark.datasource.sink.routing import Routed, Router
from rmqstore_spark.datasource.sink.stores import Queues
from rmqstore_spark.errors import OptionError, RowError
from rmqstore_spark.layout.constants import (
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    topic_fault,
)
from rmqstore_spark.layout.hosts import encode_host, same_host
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS, EncodedRecords, encode_records
from rmqstore_spark.layout.spans import I8, U1
from rmqstore_spark.produce.properties import join_keys, join_properties, property_of
from rmqstore_spark.produce.uniq_key import UniqKeys, own_address

if TYPE_CHECKING:
    from rmqstore_spark.wire.messages import OpenReply

__all__ = ["BlockToSend", "RowEncoder"]

_AT_ONCE: Final = 16 << 20
"""Bytes of bodies and their metadata that are encoded at once. Encoding takes dozens of calls, and
each costs the same for few rows as for many."""

_BLOCK_BYTES: Final = 4 << 20
"""Maximum bytes of a block, unless it is a single record. Small blocks let the store process check
one while the next is being sent."""

_PER_ROW: Final = 256
_NO_HOST: Final = {False: "0.0.0.0:0", True: "[::]:0"}
_INT_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True)
class BlockToSend:
    """Records for one store.

    Attributes:
        store: the store's number among the endpoints.
        data: uint8, records, one after the other.
        rows: number of records.
    """

    store: int
    data: U1
    rows: int


class RowEncoder:
    """Encodes the rows of one task. Its blocks must be sent in the order in which it yields them.

    Args:
        options: the write's options.
        columns: the positions of the columns in Spark's batches.
        opened: the stores' replies to `open`.
        queues: returns the queues of a topic.
        first_turn: see `Router`.
        clock: returns milliseconds since 1970.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        opened: Sequence[OpenReply],
        queues: Callable[[str], Queues],
        first_turn: int,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._options = options
        self._columns = columns
        self._opened = opened
        self._max_body = min(reply.max_message_size for reply in opened)
        self._clock = clock
        self._router = Router(options.queue_selector, queues, first_turn)
        self._ids = UniqKeys()
        self._host = _own_host()
        self._checked_topics: set[str] = set()
        self._row = 0

    def encode(self, batch: pa.RecordBatch) -> Iterator[BlockToSend]:
        """Encode one of Spark's batches.

        Raises:
            RowError: a row cannot become a message; the error names the row and the reason.
            TopicNotFoundError: a topic does not exist, or cannot be written.
        """
        for part in _parts(batch, self._columns.places["body"]):
            columns = self._columns.read(part)
            if self._options.topic is not None:
                columns["topic"] = pa.repeat(self._options.topic, len(part))
            try:
                yield from self._encode(columns, len(part))
            except RowError as error:
                raise self._placed(error, columns) from None
            self._row += len(part)

    def _placed(self, error: RowError, columns: dict[str, pa.Array]) -> RowError:
        """Add the row's number in the task, and its topic, to an error."""
        topic = columns["topic"][error.row].as_py()
        of_topic = f" (topic {topic!r})" if topic is not None else ""
        return RowError(self._row + error.row, f"of this task{of_topic} {error.cause}")

    def _encode(self, columns: dict[str, pa.Array], count: int) -> Iterator[BlockToSend]:
        self._check_present(columns)
        self._check_topics(columns["topic"])
        self._check_bodies(columns["body"])
        maps, keys = columns.get("properties"), columns.get("keys")
        if keys is not None and pa.types.is_list(keys.type):
            keys = join_keys(keys)
        routed = self._router.route(
            columns["topic"], self._sharding(columns, keys), columns.get("queueId")
        )
        properties = join_properties(
            self._uniq_keys(columns, count), keys, columns.get("tags"), maps
        )
        messages = {
            "topic": columns["topic"],
            "queueId": pa.array(routed.queue_id),
            "flag": _int32(columns, "flag", count),
            "bornTimestamp": self._born_timestamp(columns, count),
            "bornHost": self._born_host(columns, count),
            "reconsumeTimes": _reconsume_times(columns, count),
            "body": columns["body"],
            "properties": properties,
        }
        yield from self._blocks(messages, routed)

    # ---- checks --------------------------------------------------------------------------------

    def _check_present(self, columns: dict[str, pa.Array]) -> None:
        for name, remedy in (
            ("topic", "set a topic, set option topic"),
            ("body", "use an empty value for an empty body"),
        ):
            column = columns[name]
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise RowError(row, f"has null in column {name}: {remedy}, or filter out such rows")

    def _check_topics(self, topics: pa.StringArray) -> None:
        for name in topics.unique().to_pylist():
            if name in self._checked_topics:
                continue
            fault = topic_fault(name)
            if fault is not None:
                row = int(pc.index(topics, name).as_py())
                raise RowError(row, f"cannot be stored: {fault.rstrip('.')}")
            self._checked_topics.add(name)

    def _check_bodies(self, bodies: pa.BinaryArray) -> None:
        most = self._max_body
        sizes = pc.binary_length(bodies).to_numpy()
        if len(sizes) and sizes.max() > most:
            row = int(sizes.argmax())
            raise RowError(
                row,
                f"has a body of {sizes[row]:,} bytes, but the store accepts at most {most:,}. "
                "Split or shorten it, or increase the store's maxMessageSize",
            )

    # ---- columns -------------------------------------------------------------------------------

    def _sharding(
        self, columns: dict[str, pa.Array], keys: pa.StringArray | None
    ) -> pa.StringArray | None:
        """Return the text that chooses the queue: shardingKey, or the keys if that is empty."""
        if self._options.queue_selector == "roundrobin":
            return None
        maps = columns.get("properties")
        if keys is None and maps is not None:
            keys = property_of(maps, PROPERTY_KEYS)
        sharding = columns.get("shardingKey")
        if sharding is None or keys is None:
            return sharding if keys is None else keys
        given = pc.fill_null(pc.greater(pc.binary_length(sharding), 0), fill_value=False)
        return pc.if_else(given, sharding, keys)

    def _uniq_keys(self, columns: dict[str, pa.Array], count: int) -> pa.StringArray:
        made = self._ids.take(count)
        if not self._options.preserve:
            return made
        known = [columns["uniqKey"]] if "uniqKey" in columns else []
        if "properties" in columns:
            known.append(property_of(columns["properties"], PROPERTY_UNIQ_KEY))
        filled = [pc.if_else(pc.equal(pc.binary_length(k), 0), None, k) for k in known]
        return pc.coalesce(*filled, made)

    def _born_timestamp(self, columns: dict[str, pa.Array], count: int) -> pa.Int64Array:
        now = self._clock()
        given = columns.get("bornTimestamp")
        if given is None:
            return pa.array(np.full(count, now, np.int64))
        return given.fill_null(now)

    def _born_host(
        self, columns: dict[str, pa.Array], count: int
    ) -> pa.StringArray | pa.DictionaryArray:
        given = columns.get("bornHost")
        if given is None:
            return same_host(self._host, count)
        hosts = given.fill_null(self._host)
        for text in hosts.unique().to_pylist():
            try:
                encode_host(text)
            except OptionError as error:
                row = int(pc.index(hosts, text).as_py())
                cause = str(error).removesuffix(".")
                raise RowError(row, f"has an invalid bornHost: {cause}") from None
        return hosts

    # ---- blocks --------------------------------------------------------------------------------

    def _blocks(self, messages: dict[str, pa.Array], routed: Routed) -> Iterator[BlockToSend]:
        for store, reply in enumerate(self._opened):
            batch = _record_batch(messages, reply.store_host_v6)
            if len(self._opened) > 1:
                rows = np.flatnonzero(routed.store == store)
                if not len(rows):
                    continue
                batch = batch.take(pa.array(rows))
            most_bytes = min(reply.max_block_bytes, _BLOCK_BYTES)
            for data, rows_in in _cut(encode_records(batch), most_bytes, reply.max_block_rows):
                yield BlockToSend(store, data, rows_in)


def _own_host() -> str:
    """Return this machine's address in bornHost's form; the port is unknown, so it is 0."""
    address = own_address()
    if address is None:
        return _NO_HOST[False]
    text = str(ipaddress.ip_address(address))
    return f"{text}:0" if len(address) == ipaddress.IPV4LENGTH // 8 else f"[{text}]:0"


def _parts(batch: pa.RecordBatch, body: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch, each of about `_AT_ONCE` bytes."""
    lengths = pc.fill_null(pc.binary_length(batch.column(body)), 0).to_numpy()
    ends: I8 = np.cumsum(lengths, dtype=np.int64)
    ends += _PER_ROW * np.arange(1, len(ends) + 1)
    first = 0
    while first < len(batch):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + _AT_ONCE, "right")), first + 1)
        yield batch.slice(first, last - first)
        first = last


def _int32(columns: dict[str, pa.Array], name: str, count: int) -> pa.Int32Array:
    given = columns.get(name)
    if given is None:
        return pa.array(np.zeros(count, np.int32))
    numbers = given.fill_null(0).to_numpy()
    wrong = (numbers > _INT_MAX) | (numbers < ~_INT_MAX)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise RowError(row, f"has {numbers[row]} in column {name}, which does not fit into 32 bits")
    return pa.array(numbers.astype(np.int32))


def _reconsume_times(columns: dict[str, pa.Array], count: int) -> pa.Int32Array:
    times = _int32(columns, "reconsumeTimes", count)
    negative = np.flatnonzero(times.to_numpy() < 0)
    if len(negative):
        row = int(negative[0])
        raise RowError(
            row, f"has {times[row]} in column reconsumeTimes, which must not be negative"
        )
    return times


def _record_batch(messages: dict[str, pa.Array], store_host_v6: bool) -> pa.RecordBatch:
    """Build the input of `encode_records`; fields that the store process stamps are zero."""
    count = len(messages["body"])
    zeros = {pa.int32(): np.zeros(count, np.int32), pa.int64(): np.zeros(count, np.int64)}
    arrays = []
    for name, kind in RECORD_COLUMNS.items():
        if name in messages:
            arrays.append(messages[name])
        elif name == "storeHost":
            arrays.append(same_host(_NO_HOST[store_host_v6], count))
        else:
            arrays.append(pa.array(zeros[kind]))
    return pa.RecordBatch.from_arrays(arrays, names=list(RECORD_COLUMNS))


def _cut(records: EncodedRecords, most_bytes: int, most_rows: int) -> Iterator[tuple[U1, int]]:
    """Yield blocks that a store accepts, and the number of records in each."""
    ends = records.starts + records.sizes
    first = 0
    while first < len(ends):
        start = int(records.starts[first])
        last = int(np.searchsorted(ends, start + most_bytes, "right"))
        last = max(min(last, first + most_rows), first + 1)
        yield records.data[start : int(ends[last - 1])], last - first
        first = last
