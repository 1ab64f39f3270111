"""Encodes and decodes HTTP/2 as far as a gRPC server needs it (RFC 9113; HPACK is RFC 7541)."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

import hpack

__all__ = [
    "CLIENT_PREFACE",
    "DEFAULT_FRAME",
    "DEFAULT_WINDOW",
    "HEAD",
    "MOST_HEADER_BYTES",
    "MOST_WINDOW",
    "ErrorCode",
    "Flag",
    "Frame",
    "ProtocolError",
    "Setting",
    "data_head",
    "frame",
    "header_block",
    "new_header_decoder",
    "read_headers",
    "read_settings",
    "settings_payload",
    "unpadded",
    "window_update",
]

CLIENT_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = 9
"""Size of a frame's header, in bytes."""
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
MOST_WINDOW: Final = (1 << 31) - 1
MOST_HEADER_BYTES: Final = 16 << 10
"""Maximum bytes of one call's headers, encoded and decoded."""

# At level DEBUG it would log every header, including the token.
logging.getLogger("hpack").setLevel(logging.WARNING)

_HEADER_FIELD_NUL: Final = 0x00
_STATUS_200: Final = b"\x88"
_PRIORITY_BYTES: Final = 5


class Frame(IntEnum):
    """The types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    """The flags of frames."""

    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """The settings of a connection."""

    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ProtocolError(Exception):
    """The peer broke the protocol, and the connection ends.

    Attributes:
        code: the error code sent with GOAWAY.
    """

    def __init__(self, text: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def _head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return struct.pack(">IBBI", size, kind, flags, stream)[1:]


def frame(kind: Frame, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode a whole frame."""
    return _head(len(payload), kind, flags, stream) + payload


def data_head(size: int, stream: int) -> bytes:
    """Encode the header of a DATA frame whose payload follows."""
    return _head(size, Frame.DATA, 0, stream)


def window_update(stream: int, count: int) -> bytes:
    """Encode a frame that grants the peer `count` more bytes on a stream; 0 is the connection."""
    return frame(Frame.WINDOW_UPDATE, 0, stream, struct.pack(">I", count))


def settings_payload(settings: dict[Setting, int]) -> bytes:
    """Encode the payload of a SETTINGS frame."""
    return b"".join(struct.pack(">HI", key, value) for key, value in settings.items())


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the settings of a frame, including unknown ones.

    Raises:
        ProtocolError: the frame's size or a value is invalid.
    """
    if len(payload) % 6:
        raise ProtocolError("SETTINGS of an odd size", ErrorCode.FRAME_SIZE_ERROR)
    for key, value in struct.iter_unpack(">HI", payload):
        if key == Setting.INITIAL_WINDOW_SIZE and value > MOST_WINDOW:
            raise ProtocolError("INITIAL_WINDOW_SIZE", ErrorCode.FLOW_CONTROL_ERROR)
        if key == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME <= value < 1 << 24:
            raise ProtocolError("MAX_FRAME_SIZE")
        yield key, value


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload of HEADERS without its padding and priority.

    Raises:
        ProtocolError: there is more padding than payload.
    """
    begin, end = 0, len(payload)
    if flags & Flag.PADDED:
        begin, end = 1, end - (payload[0] if payload else 0)
    if flags & Flag.PRIORITY:
        begin += _PRIORITY_BYTES
    if begin > end:
        raise ProtocolError("more padding than payload")
    return payload[begin:end]


def new_header_decoder() -> hpack.Decoder:
    """Return a decoder for the header blocks of one connection."""
    return hpack.Decoder(max_header_list_size=MOST_HEADER_BYTES)


def read_headers(decoder: hpack.Decoder, block: bytes) -> dict[str, list[str]]:
    """Decode headers into a dict by name (as latin-1: headers that are not ASCII are not ours).

    Raises:
        ProtocolError: they cannot be decoded, or are too many.
    """
    found: dict[str, list[str]] = {}
    try:
        for name, value in decoder.decode(block, raw=True):
            found.setdefault(bytes(name).decode("latin-1"), []).append(
                bytes(value).decode("latin-1")
            )
    except hpack.HPACKError as error:
        raise ProtocolError(
            f"headers cannot be decoded: {error}", ErrorCode.COMPRESSION_ERROR
        ) from None
    return found


def header_block(headers: Iterable[tuple[str, str]], *, is_response: bool) -> bytes:
    """Encode a header block without a dynamic table, so that any thread can do it.

    Args:
        headers: lower-case names, and values in ASCII.
        is_response: begin with `:status: 200`.
    """
    parts = [_STATUS_200] if is_response else []
    for name, value in headers:
        parts += [bytes([_HEADER_FIELD_NUL]), _text(name.encode()), _text(value.encode())]
    return b"".join(parts)


def _text(value: bytes) -> bytes:
    """Encode a string literal without Huffman coding: its length with a 7-bit prefix, its bytes."""
    length = len(value)
    if length < 127:
        return bytes([length]) + value
    head, length = bytearray([127]), length - 127
    while length >= 128:
        head.append(length % 128 + 128)
        length //= 128
    head.append(length)
    return bytes(head) + value
