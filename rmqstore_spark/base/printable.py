"""Text for output: untrusted text for a terminal or a log, names for JSON, numbers for people.

Untrusted text must not move the cursor, colour the terminal, reverse the direction of writing or
begin another line.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final

_CAPITAL: Final = re.compile("([A-Z])")
_KIBI: Final = 1024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_EXACT: Final = 100
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


@functools.cache
def camel_case(name: str) -> str:
    """Return the name of a field as JSON and RocketMQ spell it: `queueId` for `queue_id`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def in_words(name: str) -> str:
    """Return a name that JSON has in camel case as people read it: `index entries`."""
    return _CAPITAL.sub(r" \1", name).lower()


def duration(seconds: float) -> str:
    """Return a time that something took, in its two largest units: `3 h 12 min`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number] or ["0 s"]
    return " ".join(shown[:2])


def size(value: float) -> str:
    """Return a number of bytes: `1.5 MiB`."""
    unit = 0
    while value >= _KIBI and unit < len(_UNITS) - 1:
        value, unit = value / _KIBI, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def rate(value: float) -> str:
    """Return how many there are a second: `1,250/s`, `0.25/s`."""
    return f"{value:,.0f}/s" if value >= _EXACT or value == 0 else f"{value:.3g}/s"


def escaped(text: str) -> str:
    r"""Return the text with unprintable characters escaped, as in `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if is_printable(char) else _escape(char) for char in text)


def shortened(text: str, most: int) -> str:
    """Return the text, cut to `most` characters; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def is_printable(char: str) -> bool:
    """Return whether a character may be printed as it is."""
    # `isprintable` accepts only the ASCII space.
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
