"""How LevelDB and RocksDB hold messages: two ranges of keys, ordered as bytes."""

from __future__ import annotations

import struct
from typing import Final

from benchmarks.stores.messages import Message

__all__ = ["SCHEMA", "entry", "key_begin", "message_key", "place", "split", "stored_before"]

SCHEMA: Final = """\
'm' queue(4) position(8)          -> stored(8) length(2) key body
'k' key 0x00 queue(4) position(8) -> (nothing)"""
_PLACE: Final = struct.Struct(">IQ")
_HEAD: Final = struct.Struct(">QH")


def message_key(queue: int, position: int) -> bytes:
    """Return the key of a message."""
    return b"m" + _PLACE.pack(queue, position)


def key_begin(key: str) -> bytes:
    """Return how the index entries of a message's key begin."""
    return b"k" + key.encode() + b"\0"


def entry(message: Message) -> tuple[bytes, bytes, bytes]:
    """Return key and value of a message, and the key of its index entry."""
    place = _PLACE.pack(message.queue, message.position)
    key = message.key.encode()
    value = _HEAD.pack(message.stored, len(key)) + key + message.body
    return b"m" + place, value, b"k" + key + b"\0" + place


def place(found: bytes) -> bytes:
    """Return the key of the message that an index entry's key names."""
    return b"m" + found[-_PLACE.size :]


def split(value: bytes) -> bytes:
    """Return the body in a value."""
    _, length = _HEAD.unpack_from(value)
    return value[_HEAD.size + length :]


def stored_before(value: bytes, before: int) -> bytes | None:
    """Return how the index entry of a message begins, if it was stored before a time."""
    stored, length = _HEAD.unpack_from(value)
    if stored >= before:
        return None
    return b"k" + value[_HEAD.size : _HEAD.size + length] + b"\0"
