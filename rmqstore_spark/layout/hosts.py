"""Hosts, `ip:port` texts, as the 8 or 20 bytes of a record, and the message ids that contain them.

An offset message id is storeHost and physicalOffset, in upper-case hex:

    address 4 or 16 | port 4 | physicalOffset 8        big-endian, then 32 or 56 hex characters

See docs/format.md, "A CommitLog record"; upstream `MessageDecoder.createMessageId`.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.errors import OptionError

_PORT: Final = 2
"""Bytes of a port, out of the four that a record has for it."""
_KNOWN: Final = 4096


@lru_cache(_KNOWN)  # messages that come one by one name the same clients again and again
def encode_host(text: str) -> bytes:
    """Return the address and 4-byte port of `ip:port` or `[ip]:port`.

    Raises:
        OptionError: the text is neither.
    """
    address, _, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        return ip.packed + int(port).to_bytes(_PORT, "big").rjust(4, b"\0")
    except (ValueError, OverflowError):
        raise OptionError(
            f"{text!r} is not a host: use ip:port, or [ip]:port for IPv6, with a port up to 65535."
        ) from None


def same_host(text: str, count: int) -> pa.DictionaryArray:
    """Return a column with the same host in every row."""
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [text])


def encode_hosts(
    *columns: pa.StringArray | pa.DictionaryArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], list[npt.NDArray[np.int32]]]:
    """Encode columns of hosts.

    Args:
        columns: n texts each, without nulls; dictionary-encoded columns are fastest.

    Returns:
        k hosts as (k, 20) uint8, zero-padded after the 8 bytes of an IPv4 host; whether
        each of the k is IPv6; and for each column, the number of each row's host, n.

    Raises:
        OptionError: a text is not a host.
    """
    coded = [column.dictionary_encode() for column in columns]
    packed = [encode_host(text) for column in coded for text in column.dictionary.to_pylist()]
    table = np.frombuffer(b"".join(p.ljust(20, b"\0") for p in packed), np.uint8).reshape(-1, 20)
    wide = np.array([len(p) == 20 for p in packed], np.uint8)
    first = np.cumsum([0, *(len(column.dictionary) for column in coded)], dtype=np.int32)
    codes = [
        column.indices.to_numpy().astype(np.int32) + at
        for column, at in zip(coded, first, strict=False)
    ]
    return table, wide, codes


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


def _address_text(packed: bytes) -> str:
    """Return an address as Java's `getHostAddress` does: IPv6 without `::`, here in brackets."""
    if len(packed) == ipaddress.IPV4LENGTH // 8:
        return str(ipaddress.IPv4Address(packed))
    return "[" + ":".join(f"{group:x}" for group in struct.unpack(">8H", packed)) + "]"


def _shown(text: str) -> str:
    """Shorten a user's text for an error message."""
    return repr(text if len(text) <= _V6_CHARACTERS else text[:_V6_CHARACTERS] + "...")
