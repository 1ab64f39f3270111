"""Write records, and texts that are joined, from columns, in NumPy and Arrow: part of `plain`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.constants import BORNHOST_V6_FLAG, STOREHOST_V6_FLAG
from rmqstore_spark.layout.fields import (
    HEAD_SIZE,
    HOST_SIZE,
    HOST_V6_SIZE,
    LONGEST_HEAD_SIZE,
    V6_EXTRA,
    head_layout,
)
from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1, crc32_spans, gather

_V2: Final = 0xDAA320AB
_MOST_COLUMNS: Final = 8
_LONGEST: Final = 32_767
_INTS: Final = ("queueId", "flag", "sysFlag", "reconsumeTimes")
_LONGS: Final = (
    "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "preparedTransactionOffset",
)  # fmt: skip


def write_records(
    magic: int,
    ints: I4,
    longs: I8,
    hosts: U1,
    wide: U1,
    body_offsets: I4,
    body: U1,
    topic_offsets: I4,
    topic: U1,
    properties_offsets: I4,
    properties: U1,
    starts: I8,
    sizes: I4,
    out: U1,
) -> int:
    """Write n records one after the other.

    The bits of sysFlag for the hosts' width, bodyCRC, and all lengths are computed.

    Args:
        magic: magic code of V1 or V2, unsigned.
        ints: (6, n): queueId, flag, sysFlag, reconsumeTimes, and the numbers of bornHost and
            storeHost in `hosts`.
        longs: (5, n): queueOffset, physicalOffset, bornTimestamp, storeTimestamp,
            preparedTransactionOffset.
        hosts: (k, 20): the address and port of each, 8 or 20 bytes.
        wide: k, 1 for a host of 20 bytes.
        body_offsets, body: n + 1 offsets and the data, as in an Arrow binary array.
        topic_offsets, topic, properties_offsets, properties: texts in the same form.
        starts, sizes: n out, where each record begins in `out`, and its bytes.
        out: the records.

    Returns:
        The total bytes of the records.
    """
    n, topic_width = len(starts), 2 if magic == _V2 else 1
    ints, longs, hosts = ints.reshape(6, -1), longs.reshape(5, -1), hosts.reshape(-1, HOST_V6_SIZE)
    texts = ((body_offsets, body), (topic_offsets, topic), (properties_offsets, properties))
    counts = {ints.shape[1], longs.shape[1], len(sizes), *(len(at) - 1 for at, _ in texts)}
    if counts != {n} or len(hosts) != len(wide):
        raise ValueError("the arrays differ in number")
    body_size, topic_size, properties_size = (np.diff(at).astype(np.int64) for at, _ in texts)
    mosts = (2**31 - 1, _LONGEST if topic_width == 2 else 127, _LONGEST)
    sizes_of = (body_size, topic_size, properties_size)
    for (at, data), most, size in zip(texts, mosts, sizes_of, strict=True):
        if n and (at[0] < 0 or at[-1] > len(data) or size.min() < 0 or size.max() > most):
            raise ValueError("a column holds what no record can")
    codes = ints[4:]
    if n and (codes.min() < 0 or codes.max() >= len(wide)):
        raise ValueError("a column holds what no record can")
    born_v6, store_v6 = wide[codes[0]] != 0, wide[codes[1]] != 0
    head_size = HEAD_SIZE + V6_EXTRA * (born_v6.astype(np.int64) + store_v6)
    total = head_size + body_size + topic_width + topic_size + 2 + properties_size
    ends = np.cumsum(total)
    if n and ends[-1] > len(out):
        raise ValueError("an output array is too small")
    crc = np.empty(n, np.uint32)
    crc32_spans(body, body_offsets[:-1].astype(np.int64), body_size.astype(np.int32), crc)

    heads = _heads(magic, ints, longs, hosts, (born_v6, store_v6), total, body_size, crc)
    joined = pc.binary_join_element_wise(
        _packed(heads, head_size),
        _texts(*texts[0]),
        _lengths(topic_size, topic_width),
        _texts(*texts[1]),
        _lengths(properties_size, 2),
        _texts(*texts[2]),
        b"",
    )
    starts[:], sizes[:] = ends - total, total
    if n:
        out[: ends[-1]] = np.frombuffer(joined.buffers()[2], np.uint8, ends[-1])
    return int(ends[-1]) if n else 0


def join_texts(
    leads: bytes, lead_ends: I4, offsets: I4, data: tuple[U1, ...], out_offsets: I4, out: U1
) -> int:
    """Join k texts of each of n rows; a text that is not empty follows its column's lead.

    Args:
        leads, lead_ends: the leads of the columns, one after the other, and k ends.
        offsets: (k, n + 1), those of the columns, as in Arrow binary arrays.
        data: the data of each column; at most 8.
        out_offsets: n + 1 out.
        out: the joined texts.

    Returns:
        Their total bytes.
    """
    k, n = len(lead_ends), len(out_offsets) - 1
    if k > _MOST_COLUMNS or len(data) != k:
        raise ValueError("the arrays differ in number")
    if n < 0 or offsets.size != k * (n + 1):
        raise ValueError("an output array is too small")
    begins = np.concatenate([[0], lead_ends])
    if (np.diff(begins) < 0).any() or begins[-1] > len(leads):
        raise ValueError("a span lies outside its buffer")
    parts: list[object] = []
    for column, held in enumerate(data):
        at = offsets.reshape(k, n + 1)[column]
        if n and (at[0] < 0 or at[-1] > len(held) or (np.diff(at) < 0).any()):
            raise ValueError("a span lies outside its buffer")
        lead = leads[begins[column] : begins[column + 1]]
        texts = _texts(at, held)
        parts += [pc.if_else(pc.equal(pc.binary_length(texts), 0), b"", lead), texts]
    joined = pc.binary_join_element_wise(*parts, b"") if k else pa.repeat(b"", n)
    sizes = pc.binary_length(joined).to_numpy()
    total = int(sizes.sum())
    if total > len(out):
        raise ValueError("an output array is too small")
    out_offsets[0] = 0
    out_offsets[1:] = np.cumsum(sizes)
    if total:
        out[:total] = np.frombuffer(joined.buffers()[2], np.uint8, total)
    return total


def _heads(
    magic: int,
    ints: I4,
    longs: I8,
    hosts: U1,
    wide: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
    total: I8,
    body_size: I8,
    crc: npt.NDArray[np.uint32],
) -> U1:
    """Return (n, 112) uint8: each record up to its body, zero-padded after its last field."""
    heads = np.zeros((len(total), LONGEST_HEAD_SIZE), np.uint8)
    for wide_born in (False, True):
        for wide_stored in (False, True):
            rows = np.flatnonzero((wide[0] == wide_born) & (wide[1] == wide_stored))
            layout = head_layout(born_v6=wide_born, store_v6=wide_stored)
            table = np.zeros(len(rows), layout)
            for field, name in enumerate(_INTS):
                table[name] = ints[field, rows]
            for field, name in enumerate(_LONGS):
                table[name] = longs[field, rows]
            table["magicCode"], table["totalSize"] = magic, total[rows]
            table["bodyCRC"], table["bodyLength"] = crc[rows] & 0x7FFFFFFF, body_size[rows]
            table["sysFlag"] &= ~(BORNHOST_V6_FLAG | STOREHOST_V6_FLAG)
            table["sysFlag"] |= wide_born * BORNHOST_V6_FLAG + wide_stored * STOREHOST_V6_FLAG
            table["bornHost"] = hosts[ints[4, rows], : HOST_V6_SIZE if wide_born else HOST_SIZE]
            table["storeHost"] = hosts[ints[5, rows], : HOST_V6_SIZE if wide_stored else HOST_SIZE]
            raw = table.view(np.uint8).reshape(len(rows), layout.itemsize)
            heads[rows, : layout.itemsize] = raw
    return heads


def _texts(offsets: I4, data: U1) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _packed(rows: npt.NDArray[np.uint8], sizes: npt.NDArray[Any]) -> pa.BinaryArray:
    """Return the first bytes of each row of a table."""
    starts = np.arange(len(rows), dtype=np.int64) * rows.shape[1]
    offsets = np.empty(len(rows) + 1, np.int32)
    data = np.empty(int(sizes.sum()), np.uint8)
    gather(rows.reshape(-1), starts, sizes.astype(np.int32), offsets, data)
    return _texts(offsets, data)


def _lengths(sizes: npt.NDArray[np.int64], width: int) -> pa.BinaryArray:
    """Return each length as the bytes in front of its text."""
    raw = sizes.astype(f">u{width}").view(np.uint8).reshape(-1, width)
    return _packed(raw, np.full(len(raw), width))
