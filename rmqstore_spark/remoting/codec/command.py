"""A request or an answer, and its header as bytes: JSON, or ROCKETMQ's binary form.

Upstream: RemotingCommand, RocketMQSerializable. Clients differ in how they write JSON. Values of
`extFields` are texts, numbers or booleans; here they are always texts, as they were written.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.codes import ResponseCode

VERSION: Final = 409
"""The number of RocketMQ 4.9.8 (MQVersion)."""
LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO"),
    *("PHP", "OMS", "RUST"),
)
"""The names of LanguageCode; their place is the number in a binary header."""
MAX_FIELDS: Final = 256
"""Most `extFields` of a header; no client sends more than 30."""

RESPONSE: Final = 1
ONE_WAY: Final = 2
_OTHER: Final = "OTHER"

_INTEGER: Final = re.compile(r"-?[0-9]{1,10}")
_MIN_INT: Final = -(1 << 31)
_MAX_INT: Final = (1 << 31) - 1

_FIXED: Final = struct.Struct(">hbhii")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")


class Form(IntEnum):
    """The form of a header: the first byte of a frame's mark (SerializeType)."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Command:
    """A request or an answer. Its `repr` has no body: that must not get into a log.

    Attributes:
        code: a RequestCode or a ResponseCode.
        ext: the header's own fields; `extFields` on the wire.
        body: the bytes behind the header.
        remark: text for a person, mostly of an error.
        opaque: number of the request, which its answer repeats.
        flag: bit 0: an answer; bit 1: nobody waits for an answer.
        language: one of LANGUAGES.
        version: number of the sender's RocketMQ version (MQVersion).
        form: how the header is written.
        size: bytes of the frame in which it arrived; 0 for one that was made here.
    """

    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: str = "JAVA"
    version: int = VERSION
    form: Form = Form.JSON
    size: int = field(default=0, compare=False)

    @property
    def field_count(self) -> int:
        """How many fields of its own the header has, or a few more."""
        return len(self.ext)

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & ONE_WAY)

    def one_way(self) -> Command:
        """Mark this request as one that nobody answers; returns it."""
        self.flag |= ONE_WAY
        return self

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        """Return an answer to this request, in the form of its header."""
        return Command(code, ext or {}, body, remark, self.opaque, RESPONSE, form=self.form)

    def encode_header(self) -> bytes:
        """Return the header in this command's form.

        Raises:
            FrameError: a number or text does not fit.
        """
        if self.form != Form.JSON:
            return self._binary()
        header = _JavaHeader(
            int(self.code),
            self.ext or UNSET,
            self.flag,
            self.language,
            self.opaque,
            UNSET if self.remark is None else self.remark,
            "JSON",
            self.version,
        )
        try:
            return _encode(header)
        except UnicodeEncodeError:  # half a character
            return _bytes(_dump(msgspec.to_builtins(header)))

    def _binary(self) -> bytes:
        language = LANGUAGES.index(self.language if self.language in LANGUAGES else _OTHER)
        entries = []
        for key, value in self.ext.items():
            name, text = _bytes(key), _bytes(value)
            if len(name) > 0x7FFF:
                raise FrameError(f"a field's name of {len(name)} bytes does not fit a header")
            entries += [_SHORT.pack(len(name)), name, _INT.pack(len(text)), text]
        ext = b"".join(entries)
        remark = _bytes(self.remark or "")
        try:
            fixed = _FIXED.pack(self.code, language, self.version, self.opaque, self.flag)
        except struct.error as error:
            raise FrameError(f"a number does not fit a binary header: {error}") from None
        return b"".join((fixed, _INT.pack(len(remark)), remark, _INT.pack(len(ext)), ext))


def decode_header(form: int, data: bytes) -> Command:
    """Decode a header to a command without a body.

    Args:
        form: the first byte of the frame's mark.
        data: the header.

    Raises:
        FrameError: the form is unknown, or the bytes are not a header of this form.
    """
    if form == Form.ROCKETMQ:
        return _from_binary(data)
    if form != Form.JSON:
        raise FrameError(f"headers of type {form} do not exist; 0 is JSON, 1 is ROCKETMQ")
    try:
        header = _decode_java(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _from_any_json(data)
    language = header.language
    return Command(
        header.code,
        header.ext or {},
        b"",
        None if header.remark is UNSET else header.remark,
        header.opaque,
        header.flag,
        language if language in LANGUAGES else _language(language),
        header.version,
    )


def _no_number(text: str) -> str:
    raise ValueError(f"{text} is not a number")


# Numbers stay texts: a signature covers them as they were written.
_PARSER: Final = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=_no_number, strict=False
)
_dump: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_encode: Final = msgspec.json.Encoder().encode

_Int = Annotated[int, msgspec.Meta(ge=_MIN_INT, le=_MAX_INT)]
_Ext = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_FIELDS)]


class _JavaHeader(msgspec.Struct, rename={"ext": "extFields", "form": "serializeTypeCurrentRPC"}):
    """A JSON header as Java's clients write it: all `extFields` are texts."""

    code: _Int = 0
    ext: _Ext | UnsetType | None = UNSET
    flag: _Int = 0
    language: str | None = None
    opaque: _Int = 0
    remark: str | UnsetType | None = UNSET
    form: str | None = None
    version: _Int = 0


_decode_java: Final = msgspec.json.Decoder(_JavaHeader).decode


def _from_any_json(data: bytes) -> Command:
    """Decode what other clients write, which takes eight times as long, or refuse it."""
    try:
        header = _PARSER.decode(str(data, "utf-8", "replace"))
    except (ValueError, RecursionError):
        raise FrameError(f"a header of {len(data)} bytes is not JSON") from None
    if not isinstance(header, dict):
        raise FrameError("a header is not a JSON object")
    remark = header.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise FrameError("a header's remark is not a text")
    return Command(
        _number(header, "code"),
        _fields(header.get("extFields")),
        b"",
        remark,
        _number(header, "opaque"),
        _number(header, "flag"),
        _language(header.get("language")),
        _number(header, "version"),
    )


def _number(header: dict[str, Any], name: str) -> int:
    given = header.get(name, "0")
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        number = int(given)
        if _MIN_INT <= number <= _MAX_INT:
            return number
    raise FrameError(f"a header's {name} is not a number of 32 bits")


def _language(given: object) -> str:
    if given in LANGUAGES:
        return str(given)
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 2:
        return LANGUAGES[int(given)] if int(given) < len(LANGUAGES) else _OTHER
    return _OTHER


def _fields(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise FrameError("a header's extFields are not a JSON object")
    if len(given) > MAX_FIELDS:
        raise FrameError(f"a header has {len(given)} extFields; the most are {MAX_FIELDS}")
    found = {}
    for name, value in given.items():
        if isinstance(value, str):
            found[name] = value
        elif isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif value is not None:
            raise FrameError("a header's extFields hold more than texts, numbers and booleans")
    return found


def _from_binary(data: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(data)
        remark, at = _sized(data, _FIXED.size, len(data))
        ext, end = _sized(data, at, len(data))
        fields: dict[str, str] = {}
        at = end - len(ext)
        while at < end:
            (length,) = _SHORT.unpack_from(data, at)
            name = _cut(data, at + 2, length, end)
            value, at = _sized(data, at + 2 + length, end)
            fields[str(name, "utf-8", "replace")] = str(value, "utf-8", "replace")
            if len(fields) > MAX_FIELDS:
                raise FrameError(f"a header has more than {MAX_FIELDS} extFields")
    except struct.error:
        raise FrameError(f"a binary header of {len(data)} bytes is cut off") from None
    known = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else _OTHER
    said = str(remark, "utf-8", "replace") if remark else None
    return Command(code, fields, b"", said, opaque, flag, known, version, Form.ROCKETMQ)


def _sized(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the bytes behind their length at an offset, and the offset behind them."""
    (length,) = _INT.unpack_from(data, at)
    return _cut(data, at + 4, length, end), at + 4 + length


def _cut(data: bytes, at: int, length: int, end: int) -> bytes:
    if length < 0 or at + length > end:
        raise FrameError(f"a length in a binary header is {length}, but {end - at} bytes follow")
    return data[at : at + length]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # half a character becomes a question mark, as in Java
