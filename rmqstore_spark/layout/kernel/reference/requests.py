"""Read requests to send messages, as their frames came: part of `plain`.

Plain is what nearly all clients send: SEND_MESSAGE, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE with a
header of ASCII. A frame with anything else is odd; its caller decodes it (upstream:
SendMessageRequestHeader, SendMessageRequestHeaderV2, RemotingCommand).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

MOST_FIELDS: Final = 24
"""Most fields of a plain request."""
SEND_BATCH_MESSAGE: Final = 320
BINARY: Final = struct.Struct(">hbhiiii")
"""The begin of RocketMQ's binary header, up to the size of its fields."""

_FRAME_HEAD: Final = 8
_MOST_HEADER: Final = 1 << 18
_SEND_MESSAGE: Final = 10
_SEND_MESSAGE_V2: Final = 310
_FLAGS: Final = (0, 2)
_MOST_DIGITS: Final = 18
_NEEDED: Final = {b"b", b"e", b"f", b"g", b"h"}
_INT: Final = range(-(1 << 31), 1 << 31)
_LONG: Final = range(-(1 << 63), 1 << 63)
_NUMBERS: Final = {
    b"d": _INT, b"e": _INT, b"f": _INT, b"g": _LONG, b"h": _INT, b"j": range(1 << 31), b"l": _INT,
}  # fmt: skip
_LETTERS: Final = [bytes([letter]) for letter in b"abcdefghijklmn"]
_LONG_NAMES: Final = (
    *(b"producerGroup", b"topic", b"defaultTopic", b"defaultTopicQueueNums", b"queueId"),
    *(b"sysFlag", b"bornTimestamp", b"flag", b"properties", b"reconsumeTimes", b"unitMode"),
    *(b"maxReconsumeTimes", b"batch", b"brokerName"),
)
"""Those of SEND_MESSAGE, whose fields are the same; the letters are those of the others."""
_LETTER_OF: Final = {
    **dict(zip(_LETTERS, _LETTERS, strict=True)), **dict(zip(_LONG_NAMES, _LETTERS, strict=True))
}  # fmt: skip

_SPACES: Final = re.compile(rb"[ \n\r\t]*")
_TEXT: Final = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"')
_WORD: Final = re.compile(rb"(true|false)")
_WHOLE: Final = re.compile(rb"(?!-0)(-?(?:0|[1-9][0-9]*))(?![0-9])")


class OddError(Exception):
    """The frame is not that of a plain request."""


class Text(NamedTuple):
    """A text as it was written, and whether it has escapes of JSON."""

    raw: bytes
    is_escaped: bool = False


class SendFrame(NamedTuple):
    """A plain request; `fields` are those of the header that decide something, by their letters."""

    code: int
    opaque: int
    flags: int
    is_binary: bool
    fields: Mapping[bytes, Text]
    body: bytes

    def number(self, name: bytes) -> int:
        """Return the number of a field; 0 if it is not there."""
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

    def text(self) -> Text:
        raw = self._match(_TEXT)
        return Text(raw, b"\\" in raw)

    def number(self) -> Text:
        return Text(self._match(_WHOLE))

    def value(self) -> Text:
        """Return a text, or what clients in other languages write in its place."""
        first = self._data[self._at : self._at + 1]
        if first == b'"':
            return self.text()
        return Text(self._match(_WORD)) if first in (b"t", b"f") else self.number()

    def names(self) -> Iterator[Text]:
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
            raise OddError

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def _match(self, form: re.Pattern[bytes]) -> bytes:
        found = form.match(self._data, self._at)
        if found is None:
            raise OddError
        self._at = found.end()
        return found[1]


class _Fields(dict[bytes, Text]):
    """Those of a header that decide something, by their letters."""

    uses_letters = uses_long_names = False

    def take(self, name: Text, value: Text) -> None:
        if name.is_escaped:
            raise OddError
        letter = _LETTER_OF.get(name.raw)
        if letter is None:
            return
        if letter in self or (letter == b"b" and value.is_escaped):
            raise OddError
        if letter in _NUMBERS:
            _number(value, _NUMBERS[letter])
        self[letter] = value
        if len(name.raw) == 1:
            self.uses_letters = True
        else:
            self.uses_long_names = True

    def are_of(self, code: int) -> bool:
        """Whether this is how requests of a code name their fields."""
        if code == _SEND_MESSAGE:
            return not self.uses_letters
        return code in (_SEND_MESSAGE_V2, SEND_BATCH_MESSAGE) and not self.uses_long_names


def _number(text: Text, bounds: range) -> int:
    digits = text.raw.removeprefix(b"-")
    if text.is_escaped or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise OddError
    if int(text.raw) not in bounds:
        raise OddError
    return int(text.raw)


def _read_json(header: bytes) -> tuple[int, int, int, _Fields]:
    json, found, fields = _Json(header), dict[bytes, int](), _Fields()
    seen = set()
    for name in json.names():
        if name.raw in seen:
            raise OddError
        seen.add(name.raw)
        if name.raw == b"extFields":
            for count, field in enumerate(json.names()):
                if count == MOST_FIELDS:
                    raise OddError
                fields.take(field, json.value())
        elif name.raw in (b"language", b"serializeTypeCurrentRPC"):
            json.text()
        elif name.raw == b"remark":
            if json.text().raw:  # clients in C++ write an empty one
                raise OddError
        elif name.raw in (b"code", b"flag", b"opaque", b"version"):
            found[name.raw] = _number(json.number(), _INT)
        else:
            raise OddError
    if not json.is_at_end or b"opaque" not in found:
        raise OddError
    return found.get(b"code", 0), found[b"opaque"], found.get(b"flag", 0), fields


def _read_binary(header: bytes) -> tuple[int, int, int, _Fields]:
    if len(header) < BINARY.size:
        raise OddError
    code, _, _, opaque, flags, remark, size = BINARY.unpack_from(header)
    at, fields = BINARY.size, _Fields()
    if remark or size != len(header) - at:
        raise OddError
    for count in range(MOST_FIELDS + 1):
        if at == len(header):
            return code, opaque, flags, fields
        name, at = _sized(header, at, 2)
        value, at = _sized(header, at, 4)
        if count == MOST_FIELDS:
            break
        fields.take(Text(name), Text(value))
    raise OddError


def _sized(header: bytes, at: int, width: int) -> tuple[bytes, int]:
    begin = at + width
    end = begin + int.from_bytes(header[at:begin], "big", signed=True)
    found = header[begin:end]
    if not begin <= end <= len(header) or not found.isascii() or b"\x7f" in found:
        raise OddError
    return found, end


def read_request(frame: bytes) -> SendFrame:
    """Read a frame that is complete.

    Raises:
        OddError: it is not that of a plain request.
    """
    if len(frame) < _FRAME_HEAD:
        raise OddError
    form, end = frame[4], _FRAME_HEAD + int.from_bytes(frame[5:8], "big")
    if form > 1 or end > len(frame):
        raise OddError
    header = frame[_FRAME_HEAD:end]
    code, opaque, flags, fields = _read_binary(header) if form else _read_json(header)
    if not fields.are_of(code) or flags not in _FLAGS:
        raise OddError
    if not fields.keys() >= _NEEDED or not fields[b"b"].raw:
        raise OddError
    return SendFrame(code, opaque, flags, form == 1, fields, frame[end:])


def plain_sends(
    data: bytes | memoryview, most: int
) -> tuple[list[tuple[bytes, int, int, int, int, str]], int]:
    """Look at the frames with which bytes begin, as far as these are plain requests to send.

    Args:
        data: frames, of which the last may not be complete.
        most: most bytes of a frame.

    Returns:
        Of each, the frame, the code, the opaque, the flag, the form of the header (0 is JSON) and
        the topic; and where the first begins that is not complete, or not that of such a request.
    """
    view, found, at = memoryview(data), list[tuple[bytes, int, int, int, int, str]](), 0
    while len(view) - at >= _FRAME_HEAD:
        size = 4 + int.from_bytes(view[at : at + 4], "big", signed=True)
        header = int.from_bytes(view[at + 5 : at + 8], "big")
        if not _FRAME_HEAD <= size <= min(len(view) - at, most) or header > _MOST_HEADER:
            break
        frame = bytes(view[at : at + size])
        try:
            request = read_request(frame)
        except OddError:
            break
        topic = request.fields[b"b"].raw.decode()
        form = int(request.is_binary)
        found.append((frame, request.code, request.opaque, request.flags, form, topic))
        at += size
    return found, at
