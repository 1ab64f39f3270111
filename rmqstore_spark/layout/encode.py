"""CommitLog records from columns: the other direction of `record`.

See docs/format.md, "A CommitLog record" (upstream: CommitLog.DefaultAppendMessageCallback).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.hosts import encode_hosts
from rmqstore_spark.layout.spans import I4, I8, U1, Spans, array_spans, binary_array

__all__ = ["RECORD_COLUMNS", "EncodedRecords", "encode_records"]

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
"""What `encode_records` takes: times in milliseconds, the body as it is to be stored (compressed
where sysFlag says so), the properties as bytes (`encode_properties`)."""

_TEXTS: Final = ("body", "topic", "properties")
_COPIED: Final = (
    "queueId", "flag", "queueOffset", "physicalOffset", "sysFlag", "bornTimestamp",
    "storeTimestamp", "reconsumeTimes", "preparedTransactionOffset",
)  # fmt: skip
_LONGEST_HEAD: Final = 112


@dataclass(frozen=True)
class EncodedRecords:
    """n records, one behind the other.

    Attributes:
        data: uint8, their bytes.
        starts: n byte offsets into it.
        sizes: n bytes of each.
    """

    data: U1
    starts: I8
    sizes: I4


def encode_records(batch: pa.RecordBatch, *, magic: int = MAGIC_V1) -> EncodedRecords:
    """Encode a batch of messages.

    The sysFlag bits that tell the width of the hosts are set by the hosts themselves; bodyCRC and
    all lengths are computed.

    Args:
        batch: n rows of RECORD_COLUMNS, without nulls.
        magic: MAGIC_V1, or MAGIC_V2 for topics of more than 127 bytes.

    Raises:
        OptionError: a topic or properties are longer than the format can say, or a host is none.
    """
    topic_width = 2 if magic == MAGIC_V2 else 1
    body, topic, properties = (batch[name].cast(pa.binary()) for name in _TEXTS)
    body_size, topic_size, properties_size = (_sizes(a) for a in (body, topic, properties))
    _require(topic_size, MAX_PROPERTIES_LENGTH if topic_width == 2 else MAX_TOPIC_LENGTH, "topic")
    _require(properties_size, MAX_PROPERTIES_LENGTH, "properties")
    born, born_v6 = encode_hosts(batch["bornHost"])
    stored, stored_v6 = encode_hosts(batch["storeHost"])
    head_size = 88 + 12 * born_v6.astype(np.int64) + 12 * stored_v6
    sizes = head_size + body_size + topic_width + topic_size + 2 + properties_size
    crc = array_spans(body).crc32() & np.uint32(0x7FFFFFFF)
    heads = np.zeros((len(batch), _LONGEST_HEAD), np.uint8)
    for wide_born in (False, True):
        for wide_stored in (False, True):
            rows = np.flatnonzero((born_v6 == wide_born) & (stored_v6 == wide_stored))
            if not len(rows):
                continue
            layout = _head_layout(wide_born, wide_stored)
            table = np.zeros(len(rows), layout)
            for name in _COPIED:
                table[name] = batch[name].to_numpy()[rows]
            table["magicCode"] = magic
            table["totalSize"], table["bodyLength"] = sizes[rows], body_size[rows]
            table["bodyCRC"] = crc[rows]
            table["sysFlag"] &= ~(BORNHOST_V6_FLAG | STOREHOST_V6_FLAG)
            table["sysFlag"] |= wide_born * BORNHOST_V6_FLAG + wide_stored * STOREHOST_V6_FLAG
            table["bornHost"] = born[rows, : 20 if wide_born else 8]
            table["storeHost"] = stored[rows, : 20 if wide_stored else 8]
            heads[rows, : layout.itemsize] = table.view(np.uint8).reshape(len(rows), -1)
    head_at = np.arange(len(batch), dtype=np.int64) * _LONGEST_HEAD
    head = binary_array(Spans(heads.reshape(-1), head_at, head_size.astype(np.int32)))
    joined = pc.binary_join_element_wise(
        head,
        body,
        _lengths(topic_size, ">u2" if topic_width == 2 else ">u1"),
        topic,
        _lengths(properties_size, ">u2"),
        properties,
        b"",
    )
    spans = array_spans(joined)
    return EncodedRecords(spans.buffer[: sizes.sum()], spans.starts, spans.lengths)


def _head_layout(wide_born: bool, wide_stored: bool) -> np.dtype[np.void]:
    """The fields of a record up to its body."""
    return np.dtype(
        [
            ("totalSize", ">i4"),
            ("magicCode", ">i4"),
            ("bodyCRC", ">i4"),
            ("queueId", ">i4"),
            ("flag", ">i4"),
            ("queueOffset", ">i8"),
            ("physicalOffset", ">i8"),
            ("sysFlag", ">i4"),
            ("bornTimestamp", ">i8"),
            ("bornHost", "u1", (20 if wide_born else 8,)),
            ("storeTimestamp", ">i8"),
            ("storeHost", "u1", (20 if wide_stored else 8,)),
            ("reconsumeTimes", ">i4"),
            ("preparedTransactionOffset", ">i8"),
            ("bodyLength", ">i4"),
        ]
    )


def _sizes(column: pa.BinaryArray) -> npt.NDArray[np.int64]:
    sizes: npt.NDArray[np.int64] = pc.binary_length(column).to_numpy().astype(np.int64)
    return sizes


def _lengths(sizes: npt.NDArray[np.int64], kind: str) -> pa.BinaryArray:
    """Each length as the few bytes that stand before what it measures."""
    raw = sizes.astype(kind)
    width = raw.itemsize
    starts = np.arange(len(raw), dtype=np.int64) * width
    return binary_array(Spans(raw.view(np.uint8), starts, np.full(len(raw), width, np.int32)))


def _require(sizes: npt.NDArray[np.int64], most: int, what: str) -> None:
    too_long = np.flatnonzero(sizes > most)
    if len(too_long):
        raise OptionError(
            f"Row {too_long[0]}: its {what} takes {sizes[too_long[0]]} bytes, and the format has "
            f"room for {most}."
        )
