"""Turn plain requests to send messages into records, and into answers: part of `plain`.

Plain is what nearly all clients send, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE with a header of ASCII.
A frame with anything else is odd; its caller decodes it (upstream: SendMessageRequestHeaderV2,
RemotingCommand).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.fields import HOST_SIZE, HOST_V6_SIZE
from rmqstore_spark.layout.kernel.reference.parse import split_batch
from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1

_FRAME_HEAD: Final = 8
_SEND_MESSAGE_V2: Final = 310
_SEND_BATCH_MESSAGE: Final = 320
_FLAGS: Final = (0, 2)
_MOST_FIELDS: Final = 24
_MOST_MESSAGES: Final = 4500
"""Most of a plain batch: their msgIds fit the header of an answer."""
_MOST_DIGITS: Final = 18
_NEEDED: Final = {b"b", b"e", b"f", b"g", b"h"}
_INT: Final = range(-(1 << 31), 1 << 31)
_LONG: Final = range(-(1 << 63), 1 << 63)
_NUMBERS: Final = {
    b"d": _INT, b"e": _INT, b"f": _INT, b"g": _LONG, b"h": _INT, b"j": range(1 << 31), b"l": _INT,
}  # fmt: skip
_KNOWN: Final = {bytes([letter]) for letter in b"abcdefghijklmn"}

_SPACES: Final = re.compile(rb"[ \n\r\t]*")
_TEXT: Final = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"')
_WHOLE: Final = re.compile(rb"(?!-0)(-?(?:0|[1-9][0-9]*))(?![0-9])")
_ESCAPE: Final = re.compile(rb'\\(?:(["\\/bfnrt])|u00([0-7][0-9a-fA-F]))')
_ESCAPED: Final = dict(zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True))
_BINARY: Final = struct.Struct(">hbhiiii")
_MAGIC: Final = 0xDAA320A7


class _OddError(Exception):
    """The frame is not that of a plain request."""


class _Text(NamedTuple):
    raw: bytes
    is_escaped: bool = False


class _Request(NamedTuple):
    code: int
    opaque: int
    flags: int
    is_binary: bool
    fields: Mapping[bytes, _Text]
    body: bytes

    def number(self, name: bytes) -> int:
        return int(self.fields[name].raw) if name in self.fields else 0


class _Json:
    """What clients write, and not all that JSON allows."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def past(self, wanted: bytes) -> bool:
        """Pass a character and the spaces around it, if it comes next."""
        self.spaces()
        if self._data[self._at : self._at + 1] != wanted:
            return False
        self._at += 1
        self.spaces()
        return True

    def spaces(self) -> None:
        found = _SPACES.match(self._data, self._at)
        self._at = found.end() if found else self._at

    def text(self) -> _Text:
        raw = self._match(_TEXT)
        return _Text(raw, b"\\" in raw)

    def number(self) -> _Text:
        return _Text(self._match(_WHOLE))

    def value(self) -> _Text:
        return self.text() if self._data[self._at : self._at + 1] == b'"' else self.number()

    def names(self) -> Iterator[_Text]:
        """Return the names of an object; the caller reads the value of each."""
        self.require(b"{")
        if self.past(b"}"):
            return
        while True:
            name = self.text()
            self.require(b":")
            yield name
            if self.past(b"}"):
                return
            self.require(b",")

    def require(self, wanted: bytes) -> None:
        if not self.past(wanted):
            raise _OddError

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def _match(self, form: re.Pattern[bytes]) -> bytes:
        found = form.match(self._data, self._at)
        if found is None:
            raise _OddError
        self._at = found.end()
        return found[1]


def _take_field(fields: dict[bytes, _Text], name: _Text, value: _Text) -> None:
    if name.is_escaped:
        raise _OddError
    if name.raw not in _KNOWN:
        return
    if name.raw in fields or (name.raw == b"b" and value.is_escaped):
        raise _OddError
    if name.raw in _NUMBERS:
        _number(value, _NUMBERS[name.raw])
    fields[name.raw] = value


def _number(text: _Text, bounds: range) -> int:
    digits = text.raw.removeprefix(b"-")
    if text.is_escaped or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise _OddError
    if int(text.raw) not in bounds:
        raise _OddError
    return int(text.raw)


def _read_json(header: bytes) -> tuple[int, int, int, dict[bytes, _Text]]:
    json, found, fields = _Json(header), dict[bytes, int](), dict[bytes, _Text]()
    seen = set()
    for name in json.names():
        if name.raw in seen:
            raise _OddError
        seen.add(name.raw)
        if name.raw == b"extFields":
            for count, field in enumerate(json.names()):
                if count == _MOST_FIELDS:
                    raise _OddError
                _take_field(fields, field, json.value())
        elif name.raw in (b"language", b"serializeTypeCurrentRPC"):
            json.text()
        elif name.raw in (b"code", b"flag", b"opaque", b"version"):
            found[name.raw] = _number(json.number(), _INT)
        else:
            raise _OddError
    if not json.is_at_end or b"opaque" not in found:
        raise _OddError
    return found.get(b"code", 0), found[b"opaque"], found.get(b"flag", 0), fields


def _read_binary(header: bytes) -> tuple[int, int, int, dict[bytes, _Text]]:
    if len(header) < _BINARY.size:
        raise _OddError
    code, _, _, opaque, flags, remark, size = _BINARY.unpack_from(header)
    at, fields = _BINARY.size, dict[bytes, _Text]()
    if remark or size != len(header) - at:
        raise _OddError
    for count in range(_MOST_FIELDS + 1):
        if at == len(header):
            return code, opaque, flags, fields
        name, at = _sized(header, at, 2)
        value, at = _sized(header, at, 4)
        if count == _MOST_FIELDS:
            break
        _take_field(fields, _Text(name), _Text(value))
    raise _OddError


def _sized(header: bytes, at: int, width: int) -> tuple[bytes, int]:
    begin = at + width
    end = begin + int.from_bytes(header[at:begin], "big", signed=True)
    found = header[begin:end]
    if not begin <= end <= len(header) or not found.isascii() or b"\x7f" in found:
        raise _OddError
    return found, end


def _read(frame: bytes) -> _Request:
    if len(frame) < _FRAME_HEAD:
        raise _OddError
    form, end = frame[4], _FRAME_HEAD + int.from_bytes(frame[5:8], "big")
    if form > 1 or end > len(frame):
        raise _OddError
    header = frame[_FRAME_HEAD:end]
    code, opaque, flags, fields = _read_binary(header) if form else _read_json(header)
    if code not in (_SEND_MESSAGE_V2, _SEND_BATCH_MESSAGE) or flags not in _FLAGS:
        raise _OddError
    if not fields.keys() >= _NEEDED or not fields[b"b"].raw:
        raise _OddError
    return _Request(code, opaque, flags, form == 1, fields, frame[end:])


def plain_send(frame: bytes | memoryview) -> tuple[int, int, int, int, str] | None:
    """Look at a frame that is complete.

    Returns:
        The code, the opaque, the flag, the form of the header (0 is JSON) and the topic of a plain
        request to send; None for any other frame.
    """
    try:
        found = _read(bytes(frame))
    except _OddError:
        return None
    topic = found.fields[b"b"].raw.decode()
    return found.code, found.opaque, found.flags, int(found.is_binary), topic


def _unescaped(text: _Text) -> bytes:
    if not text.is_escaped:
        return text.raw

    def replaced(found: re.Match[bytes]) -> bytes:
        return bytes([_ESCAPED[found[1][0]] if found[1] else int(found[2], 16)])

    rest = _ESCAPE.sub(b"", text.raw)
    if b"\\" in rest:
        raise _OddError
    return _ESCAPE.sub(replaced, text.raw)


def _stored_properties(text: bytes, cluster: bytes) -> bytes:
    parts = []
    for part in text.split(b"\2"):
        if part == b"DELAY" or part.startswith((b"DELAY\1", b"TRAN_MSG\1")):
            raise _OddError
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
            request = _read(frame)
            host = hosts[HOST_V6_SIZE * row :][: HOST_V6_SIZE if wide[row] else HOST_SIZE]
            number = _topic(request, topics, most_body, queue_nums)
            records = _records(request, cluster, host, store_host, len(text))
        except _OddError:
            continue
        data = b"".join(records)
        is_batch = request.code == _SEND_BATCH_MESSAGE
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


def _topic(request: _Request, topics: Mapping[bytes, int], most_body: int, queue_nums: I4) -> int:
    """Return the number of the topic that takes the messages of a request."""
    number, queue = topics.get(request.fields[b"b"].raw, -1), request.number(b"e")
    if number < 0 or not 0 <= queue < queue_nums[number] or len(request.body) > most_body:
        raise _OddError
    return number


def _records(
    request: _Request, cluster: bytes, born_host: bytes, store_host: bytes, room: int
) -> list[bytes]:
    is_batch = request.code == _SEND_BATCH_MESSAGE
    given = request.fields.get(b"i", _Text(b""))
    most = len(given.raw) + 1 + len(cluster)
    if (2 * most + MAX_PROPERTIES_LENGTH + 1 if is_batch else most) > room:
        raise ValueError("an output array is too small")
    properties = _unescaped(given)
    if not is_batch:
        stored = _stored_properties(properties, cluster)
        return [_record(request, request.body, request.number(b"h"), stored, born_host, store_host)]
    shared = b"\2".join(filter(None, (properties.rstrip(b"\2"), cluster)))
    if b"TRAN_MSG" in shared or b"TRAN_MSG" in request.body:
        raise _OddError
    found = []
    for body, flag, own in _entries(request.body):
        joined = b"\2".join(filter(None, (own.rstrip(b"\2"), shared)))
        found.append(_record(request, body, flag, joined, born_host, store_host))
    if not found:
        raise _OddError
    return found


def _entries(body: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Return the body, the flag and the properties of each message of a batch."""
    data, most = np.frombuffer(body, np.uint8), len(body) // 22 + 1
    starts, lengths = np.empty((2, most), np.int64), np.empty((3, most), np.int32)
    count, broken = split_batch(data, starts[0], lengths[0], starts[1], *lengths[1:])
    if broken >= 0:
        raise _OddError
    for row in range(count):
        (body_at, properties_at), (size, properties, flag) = starts[:, row], lengths[:, row]
        yield (
            body[body_at : body_at + size],
            int(flag),
            body[properties_at : properties_at + properties],
        )


def _record(
    request: _Request,
    body: bytes,
    flag: int,
    properties: bytes,
    born_host: bytes,
    store_host: bytes,
) -> bytes:
    topic, is_batch = request.fields[b"b"].raw, request.code == _SEND_BATCH_MESSAGE
    if len(topic) > MAX_TOPIC_LENGTH or len(properties) > MAX_PROPERTIES_LENGTH:
        raise _OddError
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


def write_answers(
    version: int,
    host: bytes,
    opaques: I4,
    forms: U1,
    queue_ids: I4,
    rows: I4,
    queue_offsets: I8,
    physical: I8,
    ends: I8,
    out: U1,
) -> int:
    """Write the answers to requests whose messages are stored: all of each frame.

    Args:
        version: of the store process, as RocketMQ numbers them.
        host: 8 or 20 bytes, of the store.
        opaques, forms, queue_ids, rows: n, of the requests; `rows` says how many messages each has.
        queue_offsets, physical: where all these messages are.
        ends: n, out: where each answer ends.
        out: the answers; 384 bytes for each, and 57 for each message.

    Returns:
        Bytes that were written.
    """
    at = first = 0
    requests = zip(opaques, forms, queue_ids, rows.tolist(), strict=True)
    for number, (opaque, form, queue_id, count) in enumerate(requests):
        places = physical[first : first + count].tolist()
        fields = {
            "msgId": ",".join(f"{host.hex().upper()}{place:016X}" for place in places),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offsets[first]),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if form:
            header = _binary_answer(version, int(opaque), fields)
        else:
            listed = ",".join(f'"{name}":"{value}"' for name, value in fields.items())
            header = (
                f'{{"code":0,"extFields":{{{listed}}},"flag":1,"language":"JAVA","opaque":{opaque},'
                f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
            ).encode()
        frame = struct.pack(">iI", 4 + len(header), len(header) | int(form) << 24) + header
        out[at : at + len(frame)] = memoryview(frame)
        at += len(frame)
        ends[number] = at
        first += count
    return at


def _binary_answer(version: int, opaque: int, fields: Mapping[str, str]) -> bytes:
    entries = b"".join(
        struct.pack(f">H{len(name)}sI", len(name), name.encode(), len(value)) + value.encode()
        for name, value in fields.items()
    )
    return _BINARY.pack(0, 0, version, opaque, 1, 0, len(entries)) + entries
