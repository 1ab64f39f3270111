r"""Reads files of `key = value` lines as `java.util.Properties` does, with javaproperties.

Files are read as UTF-8; Java's own escapes (`\u4e3b`) are understood too.
"""

from __future__ import annotations

import re
from typing import Final

import javaproperties

__all__ = ["parse_properties"]

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_CONTINUED: Final = re.compile(r"\\[\r\n]")
_MOST_CONTINUED: Final = 200
"""javaproperties needs a time that grows with the square of the lines of an entry."""


def parse_properties(text: str) -> dict[str, str]:
    """Parse a file into keys and values. If a key occurs twice, the last value counts.

    Raises:
        ValueError: an escape is invalid, and the text names the line; or too many lines end with a
            backslash.
    """
    if len(_CONTINUED.findall(text)) > _MOST_CONTINUED:
        raise ValueError(f"more than {_MOST_CONTINUED} lines end with a backslash")
    found = {}
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                found[_whole(element.key)] = _whole(element.value)
            line += len(_LINE_END.findall(element.source))
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from None
    return found


def _whole(text: str) -> str:
    """Refuse half of a character, which an escape can give: no path or text could hold it."""
    if not text.isascii():
        text.encode()
    return text
