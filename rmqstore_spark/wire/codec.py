"""Converts messages to JSON and back, and refuses any message that is not exactly as declared.

A message is a frozen dataclass, and its annotations say what a field may be. JSON names are the
names of the fields in camelCase. Values are not converted and unknown fields are not skipped.
Everything is bounded: the text before it is parsed; numbers, strings and lists afterwards.

msgspec 0.22 was measured against `tests/wire/test_codec.py`, and is not used. It keeps the last of
two equal keys. It accepts unknown fields of dataclasses, so that all messages, also those of
`types`, would have to be its own Structs. It bounds a number or text only where a field says so. It
can neither write nor read the name of a file that is not UTF-8, which Python holds as surrogates.
Besides it takes 11 ms to import, in each of Spark's tasks that have no other use for it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from rmqstore_spark.base.printable import camel_case

M = TypeVar("M")

_LONG_MAX: Final = (1 << 63) - 1
_MAX_TEXT: Final = 4096
_MAX_ITEMS: Final = 1_000_000
_SHOWN: Final = 40


class MessageError(ValueError):
    """A message does not match its class."""


class Between(NamedTuple):
    """The range of an integer; by default 0 to the largest Java long."""

    low: int
    high: int


class AtMost(NamedTuple):
    """The maximum length of a text, in characters; by default 4096."""

    length: int


def encode(message: object) -> bytes:
    """Encode a message as JSON."""
    return _ENCODER.encode(message).encode("ascii")


def decode(kind: type[M], data: bytes, *, most: int) -> M:
    """Decode a message.

    Args:
        kind: the class of the message.
        data: JSON in UTF-8; empty for a message without fields.
        most: maximum bytes.

    Raises:
        MessageError: it is too long, not JSON, or its fields or values are not as declared.
    """
    value = read_json(data, most=most) if data else {}
    checked: M = _message(kind, value, kind.__name__)
    return checked


def read_json(data: bytes, *, most: int) -> Any:
    """Parse JSON of at most `most` bytes.

    Raises:
        MessageError: it is too long, not JSON, nested too deeply, or names a key twice.
    """
    if len(data) > most:
        raise MessageError(f"a message of {len(data)} bytes, and {most} are allowed")
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except MessageError:
        raise
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {str(error)[:_SHOWN]}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageError("a key is given twice")
    return found


def _refuse(word: str) -> Any:
    raise MessageError(f"{word} is not a number in JSON")


def _plain(value: Any) -> Any:
    """Convert what JSON has no type for: a message, or a mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    kind: Any = type(value)
    return {name: getattr(value, field.name) for name, field in _fields(kind).items()}


_ENCODER: Final = json.JSONEncoder(default=_plain, separators=(",", ":"), allow_nan=False)
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)

_Check: TypeAlias = Callable[[Any, str], Any]
"""Checks the value of a field, which a name stands for in errors, and returns it."""


class _Field(NamedTuple):
    name: str
    check: _Check
    required: bool


@functools.cache
def _fields(kind: Any) -> dict[str, _Field]:
    """Return the fields of a message by their JSON names."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        camel_case(field.name): _Field(
            field.name,
            _check_of(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    }


def _message(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise MessageError(f"{where} is not an object")
    fields = _fields(kind)
    unknown = next((name for name in value if name not in fields), None)
    if unknown is not None:
        raise MessageError(f"{where} has no field {unknown[:_SHOWN]!r}")
    given = {}
    for name, field in fields.items():
        if name in value:
            given[field.name] = field.check(value[name], f"{where}.{name}")
        elif field.required:
            raise MessageError(f"{where} lacks {name}")
    try:
        return kind(**given)
    except ValueError as error:  # from the message's own checks
        raise MessageError(f"{where}: {error}") from None


@functools.cache
def _check_of(hint: Any) -> _Check:
    """Return what checks values of an annotation."""
    limit: Any = None
    if get_origin(hint) is Annotated:
        hint, limit = get_args(hint)[:2]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (kind,) = (each for each in inner if each is not type(None))
        check = _check_of(Annotated[kind, limit] if limit else kind)
        return lambda value, where: None if value is None else check(value, where)
    if origin is tuple:
        return partial(_items, _check_of(inner[0]))
    if origin is Mapping:
        return partial(_pairs, _check_of(inner[1]))
    if origin is Literal:
        return partial(_one_of, inner)
    if hint is int:
        return partial(_number, *(limit or Between(0, _LONG_MAX)))
    if hint in (str, bool):
        most = (limit or AtMost(_MAX_TEXT)).length if hint is str else None
        return lambda value, where: _require(hint, value, where, most)
    return partial(_message, hint)


def _items(check: _Check, value: Any, where: str) -> Any:
    _require(list, value, where, _MAX_ITEMS)
    return tuple(check(item, f"{where}[]") for item in value)


def _pairs(check: _Check, value: Any, where: str) -> Any:
    _require(dict, value, where, _MAX_ITEMS)
    for key in value:
        _require(str, key, where, _MAX_TEXT)
    return {key: check(item, f"{where}{{}}") for key, item in value.items()}


def _one_of(words: Sequence[Any], value: Any, where: str) -> Any:
    if value not in words:
        raise MessageError(f"{where} is not one of {', '.join(map(repr, words))}")
    return value


def _number(low: int, high: int, value: Any, where: str) -> Any:
    _require(int, value, where)
    if not low <= value <= high:
        raise MessageError(f"{where} is not within {low} to {high}")
    return value


def _require(kind: type, value: Any, where: str, most: int | None = None) -> Any:
    found = type(value)
    if found is not kind:
        raise MessageError(f"{where} is not of type {kind.__name__}")
    if most is not None and len(value) > most:
        things = "characters" if kind is str else "items"
        raise MessageError(f"{where} has more than {most} {things}")
    return value
