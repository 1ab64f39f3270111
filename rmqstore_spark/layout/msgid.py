"""Decode and encode offset message ids: storeHost and physicalOffset, in upper-case hex.

    address 4 or 16 | port 4 | physicalOffset 8        big-endian, then 32 or 56 hex characters

See docs/format.md, "A CommitLog record"; upstream `MessageDecoder.createMessageId`.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.hosts import encode_host

_TAIL: Final = struct.Struct(">iq")
_V4_CHARACTERS: Final = 2 * (4 + _TAIL.size)
_V6_CHARACTERS: Final = 2 * (16 + _TAIL.size)
_MAX_PORT: Final = 65_535


@dataclass(frozen=True)
class OffsetMsgId:
    """The location of a message: the broker's address, and the offset in its CommitLog.

    Attributes:
        host: `ip:port`, or `[ip]:port` for an IPv6 address.
        physical_offset: log offset of the record's first byte.
    """

    host: str
    physical_offset: int


def decode_msg_id(text: str) -> OffsetMsgId:
    """Decode an offset message id.

    Raises:
        OptionError: `text` is not an offset message id. (Nor is a UNIQ_KEY of 32 characters.)
    """
    try:
        raw = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        raw = b""
    if 2 * len(raw) not in (_V4_CHARACTERS, _V6_CHARACTERS):
        raise OptionError(
            f"{_shown(text)} is not an offset message id, which has {_V4_CHARACTERS} hex "
            f"characters (IPv4) or {_V6_CHARACTERS} (IPv6), as in column msgId"
        )
    port, physical_offset = _TAIL.unpack_from(raw, len(raw) - _TAIL.size)
    if physical_offset < 0 or not 0 <= port <= _MAX_PORT:
        raise OptionError(
            f"{_shown(text)} is not an offset message id: it would mean port {port} and offset "
            f"{physical_offset}. Look up the id that a producer assigned by UNIQ_KEY instead"
        )
    return OffsetMsgId(f"{_address_text(raw[: -_TAIL.size])}:{port}", physical_offset)


def offset_msg_id(host: str, physical_offset: int) -> str:
    """Return the offset message id of a record in the log of a broker.

    Args:
        host: `ip:port` or `[ip]:port`.
        physical_offset: log offset of the record's first byte.

    Raises:
        OptionError: `host` is not an address with a port, or the offset is negative or over 8
            bytes.
    """
    if not 0 <= physical_offset < 1 << 63:
        raise OptionError(f"{physical_offset} is not an offset in a log")
    return (encode_host(host) + physical_offset.to_bytes(8, "big")).hex().upper()


def _address_text(packed: bytes) -> str:
    """Return an address as Java's `getHostAddress` does: IPv6 without `::`, here in brackets."""
    if len(packed) == ipaddress.IPV4LENGTH // 8:
        return str(ipaddress.IPv4Address(packed))
    return "[" + ":".join(f"{group:x}" for group in struct.unpack(">8H", packed)) + "]"


def _shown(text: str) -> str:
    """Shorten a user's text for an error message."""
    return repr(text if len(text) <= _V6_CHARACTERS else text[:_V6_CHARACTERS] + "...")
