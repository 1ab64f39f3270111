"""Text of strangers, made fit for a terminal and for a log.

Nothing of it may move the cursor, colour a terminal, turn its text around or begin another line.
"""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["escaped", "is_printable"]

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escaped(text: str) -> str:
    r"""The text with all that cannot be printed written as `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if is_printable(char) else _escape(char) for char in text)


def is_printable(char: str) -> bool:
    """Whether a character may be printed as it is."""
    # `isprintable` knows one space only.
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
