"""Encodes and decodes the protobuf messages of Arrow Flight (Flight.proto) that are needed here.

Messages arrive in one piece of bounded size. Unknown fields are skipped, as protobuf demands.
Inconsistent messages are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rmqstore_spark.wire.codec import MessageError

__all__ = [
    "FlightData",
    "action_type_bytes",
    "flight_data_head",
    "read_action",
    "read_flight_data",
    "read_ticket",
    "result_head",
]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10
_MOST_TYPE: Final = 256
_MOST_FIELDS: Final = 64

_HEADER, _METADATA, _BODY = 2, 3, 1000  # fields of FlightData
_DESCRIPTOR, _COMMAND = 1, 2


class FlightData(NamedTuple):
    """A message of a stream of record batches.

    Attributes:
        command: the command of the stream's descriptor; None without a descriptor.
        header: Arrow's message, a flatbuffer; empty without one.
        metadata: the application's metadata.
        body: the batch's buffers.
        body_at: position of the body in the message.
    """

    command: bytes | None
    header: memoryview
    metadata: bytes
    body: memoryview
    body_at: int


def read_flight_data(data: memoryview) -> FlightData:
    """Decode a FlightData.

    Raises:
        MessageError: the bytes are not a FlightData.
    """
    command, header, metadata, body = None, memoryview(b""), b"", memoryview(b"")
    body_at = 0
    for number, value, at in _fields(data):
        if number == _DESCRIPTOR:
            command = bytes(_only(value, _COMMAND))
        elif number == _HEADER:
            header = value
        elif number == _METADATA:
            metadata = bytes(value)
        elif number == _BODY:
            body, body_at = value, at
    return FlightData(command, header, metadata, body, body_at)


def flight_data_head(header: bytes, metadata: bytes, body_size: int) -> bytes:
    """Encode a FlightData up to its body, whose bytes follow."""
    parts = []
    if header:
        parts += [_key(_HEADER), _varint(len(header)), header]
    if metadata:
        parts += [_key(_METADATA), _varint(len(metadata)), metadata]
    if body_size:
        parts += [_key(_BODY), _varint(body_size)]
    return b"".join(parts)


def read_action(data: memoryview) -> tuple[str, memoryview]:
    """Decode an action: its name and its body.

    Raises:
        MessageError: the bytes are not an Action.
    """
    name, body = "", memoryview(b"")
    for number, value, _ in _fields(data):
        if number == 1:
            name = bytes(value[:_MOST_TYPE]).decode("utf-8", "replace")
        elif number == 2:
            body = value
    return name, body


def read_ticket(data: memoryview) -> memoryview:
    """Return the bytes of a ticket.

    Raises:
        MessageError: the bytes are not a Ticket.
    """
    return _only(data, 1)


def result_head(size: int) -> bytes:
    """Encode an action's Result up to its body, whose bytes follow."""
    return _key(1) + _varint(size)


def action_type_bytes(name: str) -> bytes:
    """Encode an ActionType without a description."""
    text = name.encode()
    return _key(1) + _varint(len(text)) + text


def _only(data: memoryview, wanted: int) -> memoryview:
    """Return the field with this number, the last one if there are several."""
    found = memoryview(b"")
    for number, value, _ in _fields(data):
        if number == wanted:
            found = value
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview, int]]:
    """Yield the fields that hold bytes: their number, their value, and where the value begins."""
    at, end, left = 0, len(data), _MOST_FIELDS
    while at < end:
        left -= 1
        if not left:
            raise MessageError(f"a message of more than {_MOST_FIELDS} fields")
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _read_varint(data, at)
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
            if size > end - at:
                raise MessageError("a field reaches past the end of its message")
            yield key >> 3, data[at : at + size], at
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise MessageError(f"a field of type {kind}")
    if at > end:
        raise MessageError("a field reaches past the end of its message")


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for nth, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * nth
        if byte < 0x80:
            return value, at + nth + 1
    raise MessageError("a number without an end")


def _key(number: int) -> bytes:
    return _varint(number << 3 | _BYTES)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
