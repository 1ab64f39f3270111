"""Write the records of plain requests to send messages: part of `plain`."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.fields import HOST_SIZE, HOST_V6_SIZE
from rmqstore_spark.layout.kernel.reference.parse import split_batch
from rmqstore_spark.layout.kernel.reference.requests import (
    SEND_BATCH_MESSAGE,
    OddError,
    SendFrame,
    Text,
    read_request,
)
from rmqstore_spark.layout.kernel.reference.spans import I4, U1

_MOST_MESSAGES: Final = 4500
"""Most of a plain batch: their msgIds fit the header of an answer."""
_ESCAPE: Final = re.compile(rb'\\(?:(["\\/bfnrt])|u00([0-7][0-9a-fA-F]))')
_ESCAPED: Final = dict(zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True))
_MAGIC: Final = 0xDAA320A7


def _unescaped(text: Text) -> bytes:
    if not text.is_escaped:
        return text.raw

    def replaced(found: re.Match[bytes]) -> bytes:
        return bytes([_ESCAPED[found[1][0]] if found[1] else int(found[2], 16)])

    rest = _ESCAPE.sub(b"", text.raw)
    if b"\\" in rest:
        raise OddError
    return _ESCAPE.sub(replaced, text.raw)


def _stored_properties(text: bytes, cluster: bytes) -> bytes:
    parts = []
    for part in text.split(b"\2"):
        if part == b"DELAY" or part.startswith((b"DELAY\1", b"TRAN_MSG\1")):
            raise OddError
        if part and not part.startswith((b"WAIT\1", b"CLUSTER\1")):
            parts.append(part)
    return b"\2".join([*parts, cluster])


def write_sends(
    frames: list[bytes],
    topics: dict[bytes, int],
    most_body: int,
    most_rows: int,
    queue_nums: I4,
    hosts: bytes,
    wide: bytes,
    store_host: bytes,
    cluster: bytes,
    counts: I4,
    asked: I4,
    opaques: I4,
    forms: U1,
    queue_ids: I4,
    sizes: I4,
    rows: I4,
    text: U1,
    out: U1,
) -> int:
    """Write the records of plain requests to send, one after the other.

    Args:
        frames: n, all of each.
        topics: the numbers of the topics that take messages, by name.
        most_body: most bytes of a body.
        most_rows: most records of all.
        queue_nums: k, how many queues each topic has.
        hosts: n times 20 bytes, the clients; an IPv4 host has 8, and zeros behind them.
        wide: n, 1 where it is IPv6.
        store_host: 8 or 20 bytes.
        cluster: the property that is added to all.
        counts, asked: k, in and out: one more for each record, and each request, of the topic.
        opaques, forms, queue_ids: n, out: of the request, where there is a record.
        sizes: n, out: bytes of the records of each; 0 for an odd request, which has none.
        rows: n, out: how many records each has.
        text: room for the properties of the longest frame, `cluster` and a byte; for a batch twice
            that, and the longest properties of a record.
        out: the records. What finds no room there is odd.

    Returns:
        Bytes that were written.
    """
    at, left = 0, most_rows
    for row, frame in enumerate(frames):
        sizes[row] = rows[row] = 0
        try:
            request = read_request(frame)
            host = hosts[HOST_V6_SIZE * row :][: HOST_V6_SIZE if wide[row] else HOST_SIZE]
            number = _topic(request, topics, most_body, queue_nums)
            records = _records(request, cluster, host, store_host, len(text))
        except OddError:
            continue
        data = b"".join(records)
        is_batch = request.code == SEND_BATCH_MESSAGE
        is_too_long = len(records) > (min(left, _MOST_MESSAGES) if is_batch else left)
        if is_too_long or len(data) > len(out) - at:
            continue
        out[at : at + len(data)] = memoryview(data)
        at += len(data)
        left -= len(records)
        sizes[row], rows[row] = len(data), len(records)
        opaques[row], forms[row] = request.opaque, request.is_binary
        queue_ids[row] = request.number(b"e")
        counts[number] += len(records)
        asked[number] += 1
    return at


def _topic(request: SendFrame, topics: Mapping[bytes, int], most_body: int, queue_nums: I4) -> int:
    """Return the number of the topic that takes the messages of a request."""
    number, queue = topics.get(request.fields[b"b"].raw, -1), request.number(b"e")
    if number < 0 or not 0 <= queue < queue_nums[number] or len(request.body) > most_body:
        raise OddError
    return number


def _records(
    request: SendFrame, cluster: bytes, born_host: bytes, store_host: bytes, room: int
) -> list[bytes]:
    is_batch = request.code == SEND_BATCH_MESSAGE
    given = request.fields.get(b"i", Text(b""))
    most = len(given.raw) + 1 + len(cluster)
    if (2 * most + MAX_PROPERTIES_LENGTH + 1 if is_batch else most) > room:
        raise ValueError("an output array is too small")
    properties = _unescaped(given)
    if not is_batch:
        stored = _stored_properties(properties, cluster)
        return [_record(request, request.body, request.number(b"h"), stored, born_host, store_host)]
    shared = b"\2".join(filter(None, (properties.rstrip(b"\2"), cluster)))
    if b"TRAN_MSG" in shared or b"TRAN_MSG" in request.body:
        raise OddError
    found = []
    for body, flag, own in _entries(request.body):
        joined = b"\2".join(filter(None, (own.rstrip(b"\2"), shared)))
        found.append(_record(request, body, flag, joined, born_host, store_host))
    if not found:
        raise OddError
    return found


def _entries(body: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Return the body, the flag and the properties of each message of a batch."""
    data, most = np.frombuffer(body, np.uint8), len(body) // 22 + 1
    starts, lengths = np.empty((2, most), np.int64), np.empty((3, most), np.int32)
    count, broken = split_batch(data, starts[0], lengths[0], starts[1], *lengths[1:])
    if broken >= 0:
        raise OddError
    for row in range(count):
        (body_at, properties_at), (size, properties, flag) = starts[:, row], lengths[:, row]
        yield (
            body[body_at : body_at + size],
            int(flag),
            body[properties_at : properties_at + properties],
        )


def _record(
    request: SendFrame,
    body: bytes,
    flag: int,
    properties: bytes,
    born_host: bytes,
    store_host: bytes,
) -> bytes:
    topic, is_batch = request.fields[b"b"].raw, request.code == SEND_BATCH_MESSAGE
    if len(topic) > MAX_TOPIC_LENGTH or len(properties) > MAX_PROPERTIES_LENGTH:
        raise OddError
    sys_flag = request.number(b"f") & ~(BORNHOST_V6_FLAG | STOREHOST_V6_FLAG)
    sys_flag |= BORNHOST_V6_FLAG * (len(born_host) > HOST_SIZE)
    sys_flag |= STOREHOST_V6_FLAG * (len(store_host) > HOST_SIZE)
    parts = [
        struct.pack(
            ">IIiiqqiq", _MAGIC, zlib.crc32(body) & 0x7FFFFFFF, request.number(b"e"), flag, 0, 0,
            sys_flag, request.number(b"g"),
        ),
        born_host,
        bytes(8),
        store_host,
        struct.pack(">iqi", 0 if is_batch else request.number(b"j"), 0, len(body)),
        body,
        bytes([len(topic)]),
        topic,
        len(properties).to_bytes(2, "big"),
        properties,
    ]  # fmt: skip
    size = 4 + sum(map(len, parts))
    return b"".join([size.to_bytes(4, "big"), *parts])
