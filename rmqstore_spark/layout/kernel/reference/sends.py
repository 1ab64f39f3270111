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
    TRANSACTION_MASK,
)
from rmqstore_spark.layout.fields import HOST_SIZE, HOST_V6_SIZE, MIN_RECORD_SIZE, SYS_FLAG_LAST
from rmqstore_spark.layout.kernel.reference.answers import ROWS, SIZE
from rmqstore_spark.layout.kernel.reference.block import (
    RULE_BODY_CRC,
    RULE_CLIENT,
    RULE_PRODUCER,
    check_block,
    index_hashes,
)
from rmqstore_spark.layout.kernel.reference.parse import OK, split_batch
from rmqstore_spark.layout.kernel.reference.requests import (
    SEND_BATCH_MESSAGE,
    OddError,
    SendFrame,
    Text,
    read_request,
)
from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1

_PEER_SIZE: Final = HOST_V6_SIZE + 1
_MOST_MESSAGES: Final = 4500
"""Most of a plain batch: their msgIds fit the header of an answer."""
_MOST_KEYS: Final = 64
"""Most of a record that is written alone."""
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
    allowed_sys_flag: int,
    queue_nums: I4,
    marks: I4,  # noqa: ARG001 - for the compiled kernel
    hosts: bytes,
    store_host: bytes,
    cluster: bytes,
    counts: I4,
    asked: I4,
    requests: I4,
    starts: I8,
    tags: I8,
    sizes: I4,
    route_of: I4,
    places: I4,
    key_hash: I4,
    key_rows: I4,
    text: U1,
    out: U1,
) -> tuple[int, int, int, int, int, int]:
    """Write the records of plain requests to send, one after the other, and tell of their block.

    A record that `check_block` refuses, or with a DELAY, makes its request odd.

    Args:
        frames: n, all of each.
        topics: the numbers of the topics that take messages, by name.
        most_body: most bytes of a body.
        allowed_sys_flag: as for `check_block`.
        queue_nums: k, how many queues each topic has.
        marks: a zero for each queue of all topics: scratch space of the compiled kernel.
        hosts: n times 21 bytes, the clients; an IPv4 host has 8, and zeros behind them; the last
            byte is 1 for IPv6.
        store_host: 8 or 20 bytes.
        cluster: the property that is added to all.
        counts, asked: k, in and out: one more for each record, and each request, of the topic.
        requests: (n, 5), out: number, form and queue of each request, and the bytes and the number
            of its records. An odd one has none, and only the last two.
        starts, tags, sizes, route_of: m, out: of each record, as `check_block` tells them. What
            finds no room there is odd.
        places: m, out: the queue of each route, by its place among the queues of all topics.
        key_hash, key_rows: out: as `index_hashes` tells them; what finds no room there is odd.
        text: room for the properties of the longest frame, `cluster` and a byte; for a batch twice
            that, and the longest properties of a record.
        out: the records. What finds no room there is odd.

    Returns:
        Bytes that were written, requests that have records, the numbers of records, of routes and
        of keys, and of records whose bodies are compressed.
    """
    block = _Block(most_body, allowed_sys_flag, len(store_host) == HOST_V6_SIZE)
    at = taken = 0
    asking = requests.reshape(-1, 5)
    for row, frame in enumerate(frames):
        asking[row, SIZE] = asking[row, ROWS] = 0
        try:
            request = read_request(frame)
            peer = hosts[_PEER_SIZE * row :][:_PEER_SIZE]
            host = peer[: HOST_V6_SIZE if peer[-1] else HOST_SIZE]
            number = _topic(request, topics, most_body, queue_nums)
            records = _records(request, cluster, host, store_host, len(text))
            data = b"".join(records)
            left = len(starts) - len(block.starts)
            is_batch = request.code == SEND_BATCH_MESSAGE
            is_too_long = len(records) > (min(left, _MOST_MESSAGES) if is_batch else left)
            if is_too_long or len(data) > len(out) - at:
                continue
            place = int(queue_nums[:number].sum()) + request.number(b"e")
            block.add(data, at, place, len(key_hash))
        except OddError:
            continue
        out[at : at + len(data)] = memoryview(data)
        at += len(data)
        taken += 1
        asking[row] = (
            request.opaque, request.is_binary, request.number(b"e"), len(data), len(records),
        )  # fmt: skip
        counts[number] += len(records)
        asked[number] += 1
    for array, found in (
        (starts, block.starts), (tags, block.tags), (sizes, block.sizes),
        (route_of, block.route_of), (places, [*block.routes]), (key_hash, block.key_hash),
        (key_rows, block.key_rows),
    ):  # fmt: skip
        array[: len(found)] = found
    counted = len(block.starts), len(block.routes), len(block.key_hash), block.compressed
    return at, taken, *counted


def write_send(
    frame: bytes,
    most_body: int,
    allowed_sys_flag: int,
    queue_nums: int,
    peer: bytes,
    store_host: bytes,
    cluster: bytes,
) -> tuple[bytearray, int, int, tuple[int, ...]] | None:
    """Write the record of a plain request to send one message.

    Args:
        frame: all of it; the caller knows its topic.
        most_body, allowed_sys_flag, store_host, cluster: as for `write_sends`.
        queue_nums: how many queues its topic has.
        peer: the client, as one of `hosts` of `write_sends`.

    Returns:
        The record, its queue, its tagsCode, and the hashes of its keys; None if it is odd for
        `write_sends`, a batch, has a compressed body, or more than 64 keys.
    """
    if len(peer) != _PEER_SIZE or len(store_host) not in (HOST_SIZE, HOST_V6_SIZE):
        raise ValueError("a host has another size")
    block = _Block(most_body, allowed_sys_flag, len(store_host) == HOST_V6_SIZE)
    try:
        request = read_request(frame)
        queue_id = request.number(b"e")
        is_plain = request.code != SEND_BATCH_MESSAGE and len(request.body) <= most_body
        if not is_plain or not 0 <= queue_id < queue_nums:
            return None
        host = peer[: HOST_V6_SIZE if peer[-1] else HOST_SIZE]
        room = len(request.fields.get(b"i", Text(b"")).raw) + 1 + len(cluster)
        (record,) = _records(request, cluster, host, store_host, room)
        block.add(record, 0, 0, _MOST_KEYS)
    except OddError:
        return None
    if block.compressed:
        return None
    return bytearray(record), queue_id, block.tags[0], tuple(block.key_hash)


def check_single(
    data: U1, most_body: int, store_host_v6: int, allowed_sys_flag: int
) -> tuple[str, int, int, tuple[int, ...]] | None:
    """Check bytes as `check_block` does those of a client, if they are one usual record.

    Returns:
        Its topic, its queue, its tagsCode, and the hashes of its keys; None if `check_block`
        refuses it or finds more of them, or if its topic is not ASCII, or it has a delay, bits of
        a transaction, a compressed body, or more than 64 keys.
    """
    starts, tags = np.empty((2, 1), np.int64)
    sizes, route_of, hashes, rows = (np.empty(n, np.int32) for n in (1, 1, *[_MOST_KEYS] * 2))
    routes, queued = np.empty((1, 3), np.int64), np.empty(1, np.uint8)
    rules = RULE_CLIENT | RULE_PRODUCER | RULE_BODY_CRC
    found, _, status, _, compressed, delayed = check_block(
        data, rules, most_body, store_host_v6, allowed_sys_flag, 0, starts, sizes, route_of, tags,
        queued, routes, np.empty(2, np.int32), np.empty(2, np.uint64),
    )  # fmt: skip
    if status != OK or found != 1 or compressed or delayed:
        return None
    if data[SYS_FLAG_LAST] & TRANSACTION_MASK:
        return None
    done, count = index_hashes(data, starts, sizes, 0, hashes, rows)
    if not done:
        return None
    at, length, queue_id = routes[0].tolist()
    topic = data[at : at + length].tobytes()
    if not topic.isascii() or b"\x7f" in topic:
        return None
    return topic.decode(), queue_id, int(tags[0]), tuple(hashes[:count].tolist())


class _Block:
    """What a block tells of its records, while requests are added to it.

    Args:
        most_body, allowed_sys_flag: as for `write_sends`.
        store_host_v6: whether the store's address is IPv6.

    Attributes:
        routes: the number of each, by its place.
        starts, tags, sizes, route_of, key_hash, key_rows: as for `write_sends`.
        compressed: records whose bodies are.
    """

    def __init__(self, most_body: int, allowed_sys_flag: int, store_host_v6: bool) -> None:
        self._rules = most_body, int(store_host_v6), allowed_sys_flag
        self.routes: dict[int, int] = {}
        self.starts, self.tags, self.sizes, self.route_of = (list[int]() for _ in range(4))
        self.key_hash, self.key_rows = list[int](), list[int]()
        self.compressed = 0

    def add(self, records: bytes, at: int, place: int, most_keys: int) -> None:
        """Add the records of a request.

        Args:
            records: the records.
            at: where they begin.
            place: of their queue.
            most_keys: of all records.

        Raises:
            OddError: a record is odd, or there are too many keys.
        """
        data = np.frombuffer(records, np.uint8)
        room = len(data) // MIN_RECORD_SIZE + 1
        starts, tags, routes = (np.empty(3 * room, np.int64) for _ in range(3))
        sizes, route_of = np.empty(3 * room, np.int32), np.empty(3 * room, np.int32)
        found, _, status, _, compressed, delayed = check_block(
            data, RULE_CLIENT | RULE_PRODUCER, *self._rules, 0, starts[:room], sizes[:room],
            route_of[:room], tags[:room], np.empty(room, np.uint8), routes.reshape(-1, 3),
            np.empty(1, np.int32), np.empty(2, np.uint64),
        )  # fmt: skip
        if status != OK or delayed:
            raise OddError
        first, left = len(self.starts), most_keys - len(self.key_hash)
        keys, rows = np.empty(left, np.int32), np.empty(left, np.int32)
        done, count = index_hashes(data, starts[:found], sizes[:found], 0, keys, rows)
        if done < found:
            raise OddError
        number = self.routes.setdefault(place, len(self.routes))
        self.starts += (starts[:found] + at).tolist()
        self.tags += tags[:found].tolist()
        self.sizes += sizes[:found].tolist()
        self.route_of += [number] * found
        self.key_hash += keys[:count].tolist()
        self.key_rows += (rows[:count] + first).tolist()
        self.compressed += compressed


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
    topic = request.fields[b"b"].raw
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
        struct.pack(">iqi", request.number(b"j"), 0, len(body)),
        body,
        bytes([len(topic)]),
        topic,
        len(properties).to_bytes(2, "big"),
        properties,
    ]  # fmt: skip
    size = 4 + sum(map(len, parts))
    return b"".join([size.to_bytes(4, "big"), *parts])
