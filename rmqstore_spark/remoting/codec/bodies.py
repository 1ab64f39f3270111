"""Bodies of commands: JSON in fastjson's dialect, and compressed bytes.

Upstream: RemotingSerializable. JSON is read as such first, because that is fast. Only what is not,
such as keys without quotes, goes through `layout.fastjson`.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from rmqstore_spark.errors import CorruptStoreError, FrameError
from rmqstore_spark.layout.fastjson import dump_fastjson, parse_fastjson

MAX_VALUES: Final = 1_000_000
"""Most values of a body, so that a few megabytes of brackets do not become a gigabyte of lists."""
_MAX_REQUEST: Final = 4 << 20
"""Bytes of the body of a request that is parsed while all others wait."""
_MAX_ODD: Final = 1 << 18
"""Most bytes of a body that is not standard JSON: these are parsed slowly."""
_MAX_ODD_VALUES: Final = 50_000

_PARSER: Final = json.JSONDecoder(strict=False)
_dump: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def parse_body(body: bytes, *, object_keys: bool = False) -> Any:
    """Parse a JSON body.

    Args:
        body: the whole body.
        object_keys: accept keys that are objects, as in a broker's answers. Their hashes can be
            made to collide, so only bodies from a trusted peer may have them.

    Returns:
        dict, list, str, int, float, bool or None. Keys are str, with or without quotes in the
        body, or ObjectKey.

    Raises:
        FrameError: it is not JSON, not even fastjson's; or it has too many values, or is nested
            too deep.
    """
    values = body.count(b",") + body.count(b"[") + body.count(b"{")
    if values > MAX_VALUES:
        raise FrameError(f"the body has more than {MAX_VALUES} values")
    text = str(body, "utf-8", "replace")
    try:
        return _PARSER.decode(text)
    except RecursionError:
        raise FrameError("the body is nested too deep") from None
    except ValueError:
        if len(body) > _MAX_ODD or values > _MAX_ODD_VALUES:
            raise FrameError(f"the body of {len(body)} bytes is not JSON") from None
    try:
        return parse_fastjson(text, object_keys=object_keys)
    except CorruptStoreError as error:
        raise FrameError(f"the body is not JSON: {error.cause} at {error.offset}") from None


def parse_request(body: bytes) -> dict[str, Any]:
    """Parse the body of a request, which is an object.

    Raises:
        FrameError: it is none, or too long; or as `parse_body` raises it.
    """
    if len(body) > _MAX_REQUEST:
        raise FrameError(
            f"the body of this request has at most {_MAX_REQUEST} bytes, this one has {len(body)}"
        )
    told = parse_body(body) if body else None
    if not isinstance(told, dict):
        raise FrameError("the request has no body")
    return told


def objects_in(body: bytes, name: str) -> list[dict[str, Any]]:
    """Return the objects of a list in the body of a request.

    Args:
        body: the whole body, as `parse_request` reads it.
        name: of the list.

    Raises:
        FrameError: there is no such list, or it holds something else.
    """
    found = parse_request(body).get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise FrameError(f"{name} must be a list of objects")
    return found


def dump_body(value: Any) -> bytes:
    """Return a value as a JSON body.

    It is standard JSON with keys in quotes, even numbers: all clients read that. Only keys that
    are objects are written in fastjson's form, because RocketMQ has no other for them.

    Args:
        value: dict, list, str, int, float or bool. Keys are str, int or ObjectKey.
    """
    try:
        return _dump(value).encode()
    except TypeError:
        return dump_fastjson(value, pretty=False).encode()


def inflate(body: bytes, most: int) -> bytes:
    """Decompress a zlib stream.

    Args:
        body: the stream.
        most: most bytes of the result.

    Raises:
        FrameError: it is not a whole zlib stream, or the result is longer.
    """
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(body, most)
        if not stream.eof and stream.decompress(stream.unconsumed_tail, 1):
            raise FrameError(f"the body has more than {most} bytes when it is decompressed")
    except zlib.error as error:
        raise FrameError(f"the body is not compressed as it should be: {error}") from None
    if not stream.eof:
        raise FrameError("the compressed body is cut off")
    return found
