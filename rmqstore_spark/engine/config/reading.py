"""Reads values of keys, and says what is wrong with a key or value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from rmqstore_spark.engine.config.key import Key
from rmqstore_spark.errors import OptionError

__all__ = ["read_value", "shown", "unknown_key"]


def read_value(key: Key, name: str, given: str, source: str) -> Any:
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
        return key.read(given)
    except ValueError as error:
        raise OptionError(f"{source}{name} {error}, not {shown(given)}.") from None


def unknown_key(name: str, known: Iterable[str], page: str = "docs/configuration.md") -> str:
    """Return what to say about a key that does not exist.

    Args:
        name: the key.
        known: the keys that exist.
        page: the page of the documentation that lists them.
    """
    by_lower = {word.lower(): word for word in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    hint = f"Did you mean {by_lower[near[0]]}?" if near else f"{page} lists all keys."
    return f"unknown key {shown(name)}. {hint}"


def shown(given: str) -> str:
    """Return a text in quotes, cut if it is long."""
    return repr(given if len(given) <= 80 else given[:80] + "...")
