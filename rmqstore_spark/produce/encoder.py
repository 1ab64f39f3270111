"""Encodes columns of messages: as records, or as the body of a request with a batch for a broker.

Such a body has for each message, one after the other,

    size 4 | magic 4 | body CRC 4 | flag 4 | body length 4 | body | properties length 2 | properties

Magic and CRC are 0: brokers ignore them. Upstream: MessageDecoder.encodeMessage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import OptionError, RowError
from rmqstore_spark.layout.constants import PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from rmqstore_spark.layout.hosts import encode_host
from rmqstore_spark.layout.record.encode import EncodedRecords, encode_records
from rmqstore_spark.layout.spans import I4, I8, array_spans, join_texts
from rmqstore_spark.produce.properties import join_keys, join_properties, property_of
from rmqstore_spark.produce.queue_choice import Router
from rmqstore_spark.produce.records import (
    Origin,
    born_host,
    own_address,
    record_batch,
    unknown_host,
)
from rmqstore_spark.produce.uniq_key import RowKeys, UniqKeys

_INT_MAX: Final = (1 << 31) - 1
_HEAD_BYTES: Final = 20
_FIXED_BYTES: Final = 22


@dataclass(frozen=True)
class ReadyMessages:
    """n messages that lack only what their store decides.

    Attributes:
        store: n, the number of the store of each.
        is_chosen: n, whether a queue id or a key chose the queue, rather than a turn.
        is_delayed: n, whether it has a delay level.
        columns: the others of RECORD_COLUMNS, by name.
        origin: bornTimestamp and bornHost, where they have no column.
    """

    store: I4
    is_chosen: npt.NDArray[np.bool_]
    is_delayed: npt.NDArray[np.bool_]
    columns: Mapping[str, pa.Array]
    origin: Origin

    def encode(self, *, store_host_v6: bool, rows: I8 | None = None) -> EncodedRecords:
        """Encode messages for one store, which stamps its own address later.

        Args:
            store_host_v6: whether the store's records have room for an IPv6 address.
            rows: the messages to encode; by default all.
        """
        batch = record_batch(self.columns, self.origin, unknown_host(v6=store_host_v6))
        return encode_records(batch if rows is None else batch.take(pa.array(rows)))


class MessageEncoder:
    """Encodes messages as a producer's client does, and fills in what they lack.

    Args:
        router: chooses their queues.
        keep_ids: whether messages keep the UNIQ_KEY that they have.
        clock: returns milliseconds since 1970.
        row_keys: makes UNIQ_KEY; by default ids that no other process makes.
        by_content: whether the content of a message without a key chooses its store.
    """

    def __init__(
        self,
        router: Router,
        *,
        keep_ids: bool = False,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        row_keys: RowKeys | None = None,
        by_content: bool = False,
    ) -> None:
        self._router = router
        self._by_content = by_content
        self._keep_ids = keep_ids
        self._clock = clock
        address = own_address()
        self._host = born_host(address)
        self._ids = UniqKeys(address) if row_keys is None else row_keys

    def prepare(self, columns: Mapping[str, pa.Array]) -> ReadyMessages:
        """Complete n messages.

        Args:
            columns: `topic` and `body`, none null. Optional, and null where a message has none:
                `tags`; `keys` as text or as lists of keys; `properties` as maps; `uniqKey`;
                `queueId`, or `shardingKey` by whose hash the queue is chosen, before that of the
                keys; `flag`, `bornTimestamp` in milliseconds, `reconsumeTimes`; `bornHost`;
                `delayTimeLevel`, 0 for no delay. Numbers are int64.

        Raises:
            RowError: a message cannot be stored; the error names the row and the reason.
        """
        count = len(columns["body"])
        maps, keys = columns.get("properties"), columns.get("keys")
        if keys is not None and pa.types.is_list(keys.type):
            keys = join_keys(keys)
        sharding = _sharding(columns, keys) if self._router.by_key else None
        contents = _contents(columns, keys) if self._by_content else None
        routed = self._router.route(columns["topic"], sharding, columns.get("queueId"), contents)
        uniq_keys = self._uniq_keys(columns, count)
        levels = _levels(columns)
        origin = Origin(self._clock(), self._host)
        ready = {
            "topic": columns["topic"],
            "queueId": pa.array(routed.queue_id),
            "body": columns["body"],
            "properties": join_properties(uniq_keys, keys, columns.get("tags"), maps, levels),
        }
        for name in ("flag", "reconsumeTimes"):
            if name in columns:
                ready[name] = _int32(name, columns[name], least=0 if name != "flag" else ~_INT_MAX)
        if "bornTimestamp" in columns:
            ready["bornTimestamp"] = columns["bornTimestamp"].fill_null(origin.time)
        if "bornHost" in columns:
            ready["bornHost"] = _hosts(columns["bornHost"].fill_null(origin.host))
        is_delayed = np.zeros(count, np.bool_)
        if levels is not None:
            is_delayed = levels.is_valid().to_numpy(zero_copy_only=False)
        return ReadyMessages(routed.store, routed.is_chosen, is_delayed, ready, origin)

    def _uniq_keys(self, columns: Mapping[str, pa.Array], count: int) -> pa.StringArray:
        made = self._ids.take(count)
        if not self._keep_ids:
            return made
        known = [columns["uniqKey"]] if "uniqKey" in columns else []
        if "properties" in columns:
            known.append(property_of(columns["properties"], PROPERTY_UNIQ_KEY))
        filled = [pc.if_else(pc.equal(pc.binary_length(k), 0), None, k) for k in known]
        return pc.coalesce(*filled, made)


def _levels(columns: Mapping[str, pa.Array]) -> pa.StringArray | None:
    """Return the delay levels as texts; null for a message that is not delayed."""
    given = columns.get("delayTimeLevel")
    if given is None:
        return None
    levels = _int32("delayTimeLevel", given, least=0)
    return pc.if_else(pc.equal(levels, 0), None, levels.cast(pa.string()))


def _contents(columns: Mapping[str, pa.Array], keys: pa.StringArray | None) -> I8:
    """Return a number of at least 0 for each message, from its body, keys and tags."""
    found = array_spans(columns["body"]).content_hashes()
    for weight, texts in (3, keys), (5, columns.get("tags")):
        if texts is not None:
            found += np.uint64(weight) * array_spans(texts).content_hashes()
    return (found >> np.uint64(1)).astype(np.int64)


def _sharding(
    columns: Mapping[str, pa.Array], keys: pa.StringArray | None
) -> pa.StringArray | None:
    """Return the text that chooses the queue: shardingKey, or the keys if that is empty."""
    maps = columns.get("properties")
    if keys is None and maps is not None:
        keys = property_of(maps, PROPERTY_KEYS)
    sharding = columns.get("shardingKey")
    if sharding is None or keys is None:
        return sharding if keys is None else keys
    given = pc.fill_null(pc.greater(pc.binary_length(sharding), 0), fill_value=False)
    return pc.if_else(given, sharding, keys)


def _int32(name: str, given: pa.Int64Array, *, least: int) -> pa.Int32Array:
    """Return numbers in 32 bits; 0 in place of null."""
    numbers = given.fill_null(0).to_numpy()
    wrong = np.flatnonzero((numbers > _INT_MAX) | (numbers < ~_INT_MAX))
    if len(wrong):
        row = int(wrong[0])
        raise RowError(row, f"has {numbers[row]} in column {name}, which does not fit into 32 bits")
    low = np.flatnonzero(numbers < least)
    if len(low):
        row = int(low[0])
        raise RowError(row, f"has {numbers[row]} in column {name}, which must not be negative")
    return pa.array(numbers.astype(np.int32))


def _hosts(hosts: pa.StringArray) -> pa.StringArray:
    for text in hosts.unique().to_pylist():
        try:
            encode_host(text)
        except OptionError as error:
            row = int(pc.index(hosts, text).as_py())
            cause = str(error).removesuffix(".")
            raise RowError(row, f"has an invalid bornHost: {cause}") from None
    return hosts


def batch_entries(flags: I4, bodies: pa.BinaryArray, properties: pa.BinaryArray) -> pa.BinaryArray:
    """Return n messages as a batch has them; those that follow each other are a batch's body.

    Args:
        flags: n flags.
        bodies: n, none null.
        properties: n, none null, none longer than a record can hold.
    """
    count = len(bodies)
    sizes, lengths = (pc.binary_length(column).to_numpy() for column in (bodies, properties))
    heads = np.zeros((count, _HEAD_BYTES // 4), ">i4")
    heads[:, 0] = _FIXED_BYTES + sizes + lengths
    heads[:, 3] = flags
    heads[:, 4] = sizes
    tails = lengths.astype(">i2")
    columns = [_fixed(heads, _HEAD_BYTES), bodies, _fixed(tails, 2), properties]
    return join_texts(["", "", "", ""], columns)


def _fixed(values: npt.NDArray[np.signedinteger], width: int) -> pa.BinaryArray:
    """Return numbers as texts of some bytes each."""
    count = len(values)
    offsets = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
