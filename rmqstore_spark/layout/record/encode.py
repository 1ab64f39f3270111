"""Encode columns as CommitLog records.

See docs/format.md, "A CommitLog record" (upstream: CommitLog.DefaultAppendMessageCallback).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
)
from rmqstore_spark.layout.fields import HOST_V6_SIZE, MIN_RECORD_SIZE, V6_EXTRA
from rmqstore_spark.layout.hosts import encode_host, encode_hosts
from rmqstore_spark.layout.spans import I4, I8, U1, array_texts

RECORD_COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bornTimestamp": pa.int64(),
    "bornHost": pa.string(),
    "storeTimestamp": pa.int64(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "body": pa.binary(),
    "properties": pa.binary(),
}
"""Input of `encode_records`: times in milliseconds, the body as stored (compressed if sysFlag says
so), the properties as bytes (`encode_properties`)."""

_TEXTS: Final = ("body", "topic", "properties")
_HOSTS: Final = ("bornHost", "storeHost")
_INTS: Final = ("queueId", "flag", "sysFlag", "reconsumeTimes")
_LONGS: Final = (
    "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "preparedTransactionOffset",
)  # fmt: skip


@dataclass(frozen=True)
class EncodedRecords:
    """n records, one after the other.

    Attributes:
        data: uint8, their bytes.
        starts: n byte offsets into it.
        sizes: n bytes of each.
    """

    data: U1
    starts: I8
    sizes: I4


class MessageFields(NamedTuple):
    """A message on its way into a record.

    Attributes:
        topic, body, properties: as they are stored.
        born_host: `ip:port` or `[ip]:port`.
        born_timestamp: milliseconds.
        queue_id, flag, sys_flag, reconsume_times: numbers of 32 bits.
    """

    topic: bytes
    body: bytes
    properties: bytes
    born_host: str
    born_timestamp: int
    queue_id: int
    flag: int
    sys_flag: int
    reconsume_times: int


def encode_records(batch: pa.RecordBatch, *, magic: int = MAGIC_V1) -> EncodedRecords:
    """Encode a batch of messages.

    The hosts determine the sysFlag bits for their width; bodyCRC and all lengths are computed.

    Args:
        batch: n rows of RECORD_COLUMNS, without nulls; hosts may be dictionary-encoded.
        magic: MAGIC_V1, or MAGIC_V2 for topics of more than 127 bytes.

    Raises:
        OptionError: a topic or the properties are too long for the format, or a host is invalid.
    """
    wide_topic = magic == MAGIC_V2
    texts = [array_texts(batch[name].cast(pa.binary())) for name in _TEXTS]
    for (offsets, _), most, what in (
        (texts[1], MAX_PROPERTIES_LENGTH if wide_topic else MAX_TOPIC_LENGTH, "topic"),
        (texts[2], MAX_PROPERTIES_LENGTH, "properties"),
    ):
        _require(np.diff(offsets), most, what)
    hosts, wide, codes = encode_hosts(*(batch[name] for name in _HOSTS))
    ints = np.stack([*(batch[name].to_numpy() for name in _INTS), *codes])
    longs = np.stack([batch[name].to_numpy() for name in _LONGS])
    return _written(magic, ints, longs, hosts, wide, texts)


def encode_messages(messages: Sequence[MessageFields], store_host: str) -> EncodedRecords:
    """Encode a few messages, without the cost of columns.

    Args:
        messages: at least one. Their topics and properties are not too long for the format.
        store_host: `ip:port` or `[ip]:port`, for the room that the store needs.

    Raises:
        OptionError: a host is invalid.
    """
    fields = list(zip(*messages, strict=True))
    topics, bodies, properties, born_hosts, born = fields[:5]
    numbers, hosts, wide = _packed((*born_hosts, store_host))
    codes = [*map(numbers.__getitem__, born_hosts)], [numbers[store_host]] * len(messages)
    ints = np.array([*fields[5:], *codes], np.int32)
    longs = np.zeros((len(_LONGS), len(messages)), np.int64)
    longs[_LONGS.index("bornTimestamp")] = born
    texts = _joined(bodies, topics, properties)
    return _written(MAGIC_V1, ints, longs, hosts, wide, texts)


def encode_alike(
    shared: MessageFields,
    flags: I4,
    bodies: tuple[I4, U1],
    properties: tuple[I4, U1],
    store_host: str,
) -> EncodedRecords:
    """Encode messages that differ in nothing but their flags, bodies and properties.

    Args:
        shared: what they share; its flag, body and properties are not used. The topic is not too
            long for the format.
        flags: n.
        bodies, properties: n each: n + 1 offsets, and bytes. No properties are too long for the
            format.
        store_host: as in `encode_messages`.

    Raises:
        OptionError: a host is invalid.
    """
    count = len(flags)
    numbers, hosts, wide = _packed((shared.born_host, store_host))
    same = [*shared[5:], numbers[shared.born_host], numbers[store_host]]
    ints = np.repeat(np.array(same, np.int32)[:, None], count, axis=1)
    ints[_INTS.index("flag")] = flags
    longs = np.zeros((len(_LONGS), count), np.int64)
    longs[_LONGS.index("bornTimestamp")] = shared.born_timestamp
    texts = [bodies, *_joined([shared.topic] * count), properties]
    return _written(MAGIC_V1, ints, longs, hosts, wide, texts)


def _packed(hosts: Sequence[str]) -> tuple[dict[str, int], U1, U1]:
    """Return the number of each host, all of them as bytes, and whether each is IPv6."""
    numbers, padded, wide = dict[str, int](), list[bytes](), list[bool]()
    for host in dict.fromkeys(hosts):
        packed = encode_host(host)
        numbers[host] = len(padded)
        padded.append(packed.ljust(HOST_V6_SIZE, b"\0"))
        wide.append(len(packed) == HOST_V6_SIZE)
    data = np.frombuffer(b"".join(padded), np.uint8).reshape(-1, HOST_V6_SIZE)
    return numbers, data, np.array(wide, np.uint8)


def _joined(*columns: Sequence[bytes]) -> list[tuple[I4, U1]]:
    """Return the n + 1 offsets of the texts of each column, and their bytes."""
    found = []
    for parts in columns:  # for a few texts, NumPy's own sum would take ten times as long
        offsets = np.array([*accumulate(map(len, parts), initial=0)], np.int32)
        found.append((offsets, np.frombuffer(b"".join(parts), np.uint8)))
    return found


def _written(
    magic: int, ints: I4, longs: I8, hosts: U1, wide: U1, texts: Sequence[tuple[I4, U1]]
) -> EncodedRecords:
    """Write records: `ints` are _INTS and the numbers of the hosts, `longs` _LONGS."""
    n = ints.shape[1]
    heads = n * (MIN_RECORD_SIZE + (magic == MAGIC_V2))
    if any(wide.tolist()):
        heads += V6_EXTRA * int(wide[ints[len(_INTS) :]].sum(dtype=np.int64))
    total = heads
    for offsets, _ in texts:
        total += int(offsets[-1]) - int(offsets[0])
    starts, sizes, data = np.empty(n, np.int64), np.empty(n, np.int32), np.empty(total, np.uint8)
    kernel.active.write_records(
        magic & 0xFFFFFFFF, ints, longs, hosts, wide, *texts[0], *texts[1], *texts[2],
        starts, sizes, data,
    )  # fmt: skip
    return EncodedRecords(data, starts, sizes)


def _require(sizes: I4, most: int, what: str) -> None:
    too_long = np.flatnonzero(sizes > most)
    if len(too_long):
        raise OptionError(
            f"Row {too_long[0]}: {what} of {sizes[too_long[0]]} bytes; the format allows at most "
            f"{most}."
        )
