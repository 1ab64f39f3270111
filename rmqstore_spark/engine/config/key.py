"""A key of a store's configuration: its name, type, range and meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

from rmqstore_spark.printable import camel_case

__all__ = ["Key", "choice", "flag", "keys_of", "number", "share", "text"]

_METADATA: Final = "key"
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_SHARE: Final = re.compile(r"[01]?\.?[0-9]{0,9}")
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class Key:
    """Describes a key.

    Attributes:
        kind: what values it takes, for people.
        read: parses a text; raises ValueError with a phrase that follows the name.
        doc: what it does, in Markdown.
        group: the heading under which it is listed.
        own: RocketMQ has no such key.
        name: its name in the file.
        attribute: its name in Python.
        default: its value if none is given.
    """

    kind: str
    read: Callable[[str], Any]
    doc: str
    group: str
    own: bool
    name: str = ""
    attribute: str = ""
    default: Any = None

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return "RMQSTORE_" + self.attribute.upper()

    def write(self, value: Any) -> str:
        """Return the text that `read` takes for a value."""
        return str(value).lower() if isinstance(value, bool) else str(value)


def number(
    default: int, least: int, most: int, doc: str, *, group: str, unit: str = "", own: bool = False
) -> Any:
    """Define a key with a whole number between two bounds, both included."""

    def read(given: str) -> int:
        word = given.strip()
        if not _INTEGER.fullmatch(word) or not least <= int(word) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(word)

    bounds = f"{least} or more" if most >= _LONG_MAX else f"{least} to {most}"
    kind = f"{unit or 'number'}, {bounds}"
    return _field(Key(kind, read, doc, group, own), default)


def share(default: float, doc: str, *, group: str, own: bool = False) -> Any:
    """Define a key with a part of a whole, above 0 and at most 1."""

    def read(given: str) -> float:
        word = given.strip()
        if not _SHARE.fullmatch(word) or not 0 < float(word) <= 1:
            raise ValueError("must be a number above 0 and at most 1, such as 0.85")
        return float(word)

    return _field(Key("part, above 0 to 1", read, doc, group, own), default)


def flag(default: bool, doc: str, *, group: str, own: bool = False) -> Any:
    """Define a key that is `true` or `false`."""

    def read(given: str) -> bool:
        word = given.strip().lower()
        if word not in ("true", "false"):
            raise ValueError("must be true or false")
        return word == "true"

    return _field(Key("true or false", read, doc, group, own), default)


def choice(default: str, words: tuple[str, ...], doc: str, *, group: str, own: bool = False) -> Any:
    """Define a key that takes one of some words, in any case."""

    def read(given: str) -> str:
        for word in words:
            if given.strip().lower() == word.lower():
                return word
        raise ValueError(f"must be {' or '.join(words)}")

    return _field(Key(" or ".join(f"`{word}`" for word in words), read, doc, group, own), default)


def text(
    default: str,
    doc: str,
    *,
    group: str,
    kind: str = "text",
    own: bool = False,
    check: Callable[[str], str] = str,
) -> Any:
    """Define a key with a text without control characters.

    Args:
        check: normalizes a value; raises ValueError with a phrase.
    """

    def read(given: str) -> str:
        word = given.strip()
        if not word.isprintable():
            raise ValueError("must not hold control characters")
        return check(word)

    return _field(Key(kind, read, doc, group, own), default)


def keys_of(configuration: type) -> Iterator[Key]:
    """Yield the keys of a configuration class, in the order in which it lists them."""
    for item in fields(configuration):
        key = item.metadata[_METADATA]
        yield Key(
            key.kind, key.read, key.doc, key.group, key.own,
            _spelled(item.name), item.name, item.default,
        )  # fmt: skip


def _field(key: Key, default: Any) -> Any:
    return field(default=default, metadata={_METADATA: key})


def _spelled(attribute: str) -> str:
    # `brokerIP1` is the only name of RocketMQ that does not follow from its words.
    return camel_case(attribute).replace("Ip1", "IP1")
