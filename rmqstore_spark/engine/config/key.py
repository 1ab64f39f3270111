"""Declare the keys of a configuration, and read and write their values.

A key is a field of the class of its configuration. Its name is the field's in camel case, unless it
has another one in RocketMQ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from rmqstore_spark.base.settings import (
    Declaration,
    as_text,
    declare,
    nearest,
    parse_boolean,
    parse_choice,
    settings_of,
)
from rmqstore_spark.engine.config.properties_file import format_properties
from rmqstore_spark.errors import OptionError

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_SHARE: Final = re.compile(r"[01]?\.?[0-9]{0,9}")


def number(
    default: int, least: int, most: int, doc: str, *, group: str, unit: str = "", own: bool = False
) -> Any:
    """Declare a key with a whole number between two bounds, both included."""

    def parse(given: str) -> int:
        word = given.strip()
        if not _INTEGER.fullmatch(word) or not least <= int(word) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(word)

    kind = unit or "number"
    return declare(
        Declaration(kind, parse, str(default), doc, group, least=least, most=most, own=own)
    )


def share(default: float, doc: str, *, group: str, own: bool = False) -> Any:
    """Declare a key with a part of a whole, above 0 and at most 1."""

    def parse(given: str) -> float:
        word = given.strip()
        if not _SHARE.fullmatch(word) or not 0 < float(word) <= 1:
            raise ValueError("must be a number above 0 and at most 1, such as 0.85")
        return float(word)

    return declare(Declaration("part, above 0 to 1", parse, str(default), doc, group, own=own))


def flag(default: bool, doc: str, *, group: str, own: bool = False) -> Any:
    """Declare a key that is `true` or `false`."""
    return declare(
        Declaration("true or false", parse_boolean, as_text(default), doc, group, own=own)
    )


def choice(default: str, words: tuple[str, ...], doc: str, *, group: str, own: bool = False) -> Any:
    """Declare a key that takes one of some words, in any case."""
    kind = " or ".join(f"`{word}`" for word in words)
    return declare(Declaration(kind, parse_choice(*words), default, doc, group, own=own))


def text(
    default: str,
    doc: str,
    *,
    group: str,
    kind: str = "text",
    own: bool = False,
    check: Callable[[str], str] = str,
    name: str = "",
) -> Any:
    """Declare a key with a text without control characters.

    Args:
        check: normalizes a value; raises ValueError with a phrase.
        name: if it is not the field's.
    """

    def parse(given: str) -> str:
        word = given.strip()
        if not word.isprintable():
            raise ValueError("must not hold control characters")
        return check(word)

    return declare(Declaration(kind, parse, default, doc, group, own=own, name=name))


def as_properties(configuration: object) -> str:
    """Format a configuration as a properties file."""
    keys = settings_of(type(configuration))
    return format_properties({k.name: as_text(getattr(configuration, k.attribute)) for k in keys})


def read_value(key: Declaration, name: str, given: str, source: str) -> Any:
    """Return the value of a text.

    Args:
        key: the key.
        name: its name where the text stands.
        given: the text.
        source: origin of the text, for messages.

    Raises:
        OptionError: the text is wrong for this key.
    """
    try:
        return key.parse(given)
    except ValueError as error:
        raise OptionError(f"{source}{name} {error}, not {shown(given)}.") from None


def unknown_key(name: str, known: Iterable[str], page: str = "docs/configuration.md") -> str:
    """Return what to say about a key that does not exist.

    Args:
        name: the key.
        known: the keys that exist.
        page: the page of the documentation that lists them.
    """
    near = nearest(name, known)
    hint = f"{page} lists all keys." if near is None else f"Did you mean {near}?"
    return f"unknown key {shown(name)}. {hint}"


def shown(given: str) -> str:
    """Return a text in quotes, cut if it is long."""
    return repr(given if len(given) <= 80 else given[:80] + "...")
