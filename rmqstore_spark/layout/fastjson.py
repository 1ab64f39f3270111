"""Parse and write the JSON of a broker's configuration files and answers, in fastjson's dialect.

It is JSON, except that a key that is a number in Java has no quotes: `{"offsetTable":{0:17}}`. A
key that is an object is written as one: `{{"queueId":0,"topic":"t"}:17}`. See docs/format.md, "A
store directory" and "Delayed messages" (upstream: RemotingSerializable; in files, it calls fastjson
with its feature PrettyFormat).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from rmqstore_spark.errors import CorruptStoreError

MAX_LENGTH: Final = 1 << 28
"""Maximum characters of a text; a broker with 100,000 groups writes a tenth of it."""
MAX_DEPTH: Final = 64
"""Maximum nesting of objects and arrays; a broker's own files have four levels."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,100}(?:\.[0-9]{1,100})?(?:[eE][+-]?[0-9]{1,4})?(?![\w.+-])")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_$-]{1,200}")
_STRINGS: Final = json.JSONDecoder(strict=False)  # fastjson does not escape control characters
_encoded: Final = json.JSONEncoder(ensure_ascii=False).encode
_WORDS: Final = {"true": True, "false": False, "null": None}


class ObjectKey(dict[str, Any]):
    """A key that is an object, such as the queue of an offset. Its values are texts or numbers."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def parse_fastjson(text: str, *, file: str = "", object_keys: bool = False) -> Any:
    """Parse a text.

    Args:
        text: the whole content of a file.
        file: its path, for error messages.
        object_keys: accept keys that are objects; no file of a broker has them, answers do.

    Returns:
        dict, list, str, int, float, bool or None. Keys are always str, with or without quotes in
        the text, or ObjectKey. If a key occurs twice, the last one counts.

    Raises:
        CorruptStoreError: the text is not valid, or exceeds MAX_LENGTH or MAX_DEPTH.
    """
    if len(text) > MAX_LENGTH:
        raise CorruptStoreError(f"the JSON text is too long ({len(text)} characters)", file=file)
    try:
        return _parse_json(text)
    except (ValueError, RecursionError):
        return _Parser(text, file, object_keys).whole()


def dump_fastjson(value: Any, *, pretty: bool = True) -> str:
    """Return a value as the text that a broker writes into its configuration files.

    Args:
        value: dict, list, str, int, float, bool or None. Keys are str, int for keys without
            quotes, or ObjectKey. Members whose value is None are left out, as in fastjson.
        pretty: with line ends and tabs, as in files; False: without, as in answers.

    Raises:
        TypeError: the value is or contains another type.
        ValueError: a number is not finite, or a text contains a lone surrogate.
    """
    pieces = list[str]()
    _write(value, "\n" if pretty else "", pieces)
    return "".join(pieces)


def _write(value: Any, line: str, to: list[str]) -> None:
    """Write the text of a value.

    Args:
        value: see `dump_fastjson`.
        line: newline and indentation at the value's depth; empty for a text on one line.
        to: gets the text, in pieces.
    """
    deeper = line and line + "\t"
    if isinstance(value, dict):
        is_first = True
        for key, member in value.items():
            if member is not None:
                to.append("{" if is_first else ",")
                is_first = False
                _write_key(key, deeper, to)
                _write(member, deeper, to)
        to.append("{}" if is_first else line + "}")
    elif isinstance(value, (list, tuple)):
        for n, member in enumerate(value):
            to.append(("," if n else "[") + deeper)
            _write(member, deeper, to)
        to.append(line + "]" if value else "[]")
    else:
        to.append(_scalar_text(value))


def _write_key(key: Any, line: str, to: list[str]) -> None:
    """Write a key and its colon; fastjson does not begin a new line for a key that is a number."""
    if isinstance(key, str):
        to.append(f"{line}{_scalar_text(key)}:")
    elif isinstance(key, int) and not isinstance(key, bool):
        to.append(f"{key}:")
    elif isinstance(key, ObjectKey):
        _write(dict(key), "", to)
        to.append(":")
    else:
        raise TypeError(f"a JSON key cannot be {type(key).__name__}")


def _scalar_text(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # a lone surrogate would make the file unreadable
        # U+2028 and U+2029 end a line in Java, so fastjson escapes them.
        return _encoded(value).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON cannot represent {value}")
    if value is None or isinstance(value, (bool, int, float)):
        return _encoded(value)
    raise TypeError(f"a JSON value cannot be {type(value).__name__}")


def _parse_json(text: str) -> Any:
    """Parse a text that is JSON without fastjson's dialect, in a fraction of the time.

    Raises:
        ValueError, RecursionError: it is not, or `_Parser` does not take it.
    """
    value = _JSON.decode(text.removeprefix("\ufeff"))
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [each for each in level if type(each) in (dict, list)]
        if not level:
            return value
        members = (each.values() if type(each) is dict else each for each in level)
        level = [one for of in members for one in of]
    raise ValueError("too deep")


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("too long")
    return int(digits)


def _fraction(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError("too long")
    return float(text)


def _no_number(word: str) -> float:
    raise ValueError(word)


_MOST_DIGITS: Final = 100
_JSON: Final = json.JSONDecoder(
    strict=False, parse_int=_whole_number, parse_float=_fraction, parse_constant=_no_number
)


class _Parser:
    """Parses one text, value by value.

    Args:
        text: the text.
        file: its path.
        object_keys: see `parse_fastjson`.
    """

    def __init__(self, text: str, file: str, object_keys: bool) -> None:
        self._text = text
        self._file = file
        self._object_keys = object_keys
        self._at = 0

    def whole(self) -> Any:
        """Parse the text's only value."""
        self._text = self._text.removeprefix("\ufeff")
        value = self._value(MAX_DEPTH)
        if self._peek():
            raise self._damaged("unexpected text after the JSON value")
        return value

    def _value(self, depth: int) -> Any:
        first = self._peek()
        if first == '"':
            return self._string()
        if first in ("{", "["):
            if not depth:
                raise self._damaged(f"JSON objects are nested more than {MAX_DEPTH} deep")
            self._at += 1
            return self._object(depth - 1) if first == "{" else self._array(depth - 1)
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            digits = number[0]
            return int(digits) if digits.lstrip("-").isdigit() else float(digits)
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        raise self._damaged("expected a JSON value")

    def _object(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not self._closes("}", first=not found):
            key = self._key()
            self._expect(":")
            found[key] = self._value(depth)
        return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._closes("]", first=not found):
            found.append(self._value(depth))
        return found

    def _closes(self, bracket: str, *, first: bool) -> bool:
        """Return whether an object or array ends here; consume the comma if it does not.

        A comma before the end is accepted, as in fastjson: people edit these files.
        """
        if not first and self._peek() == ",":
            self._at += 1
        elif not first and self._peek() != bracket:
            raise self._damaged(f"expected a comma or {bracket} in JSON")
        if self._peek() != bracket:
            return False
        self._at += 1
        return True

    def _key(self) -> str | ObjectKey:
        if self._peek() == '"':
            return self._string()
        if self._object_keys and self._peek() == "{":
            return self._object_key()
        key = _BARE_KEY.match(self._text, self._at)
        if key is None:
            raise self._damaged("expected a key in a JSON object")
        self._at = key.end()
        return key[0]

    def _object_key(self) -> ObjectKey:
        self._at += 1
        self._object_keys = False  # a key of a key cannot be an object, nor can its values
        found = ObjectKey(self._object(0))
        self._object_keys = True
        if not all(isinstance(member, (str, int, float)) for member in found.values()):
            raise self._damaged("expected texts and numbers in the key of a JSON object")
        return found

    def _string(self) -> str:
        try:
            value, self._at = _STRINGS.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            raise self._damaged(f"invalid JSON string ({error.msg})") from None
        return str(value)

    def _peek(self) -> str:
        """Return the next character that is not a space, "" at the end."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._damaged(f"expected {character} in JSON")
        self._at += 1

    def _damaged(self, cause: str) -> CorruptStoreError:
        return CorruptStoreError(
            cause,
            file=self._file,
            offset=self._at,
            remedy="Repair or remove the file. There may be a copy beside it that ends in .bak.",
        )
