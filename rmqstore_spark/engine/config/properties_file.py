r"""Reads and writes files of `key = value` lines as `java.util.Properties` does.

Files are read as UTF-8. Java's own escapes (`\u4e3b`) are understood too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["dump_properties", "parse_properties"]

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_SHORT: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")


def parse_properties(text: str) -> dict[str, str]:
    """Parse a file into keys and values. If a key occurs twice, the last value counts.

    Raises:
        ValueError: an escape is invalid; the text names the line.
    """
    found = {}
    for number, line in _logical_lines(text):
        end = _end(_KEY, line, 0)
        value = line[_end(_SEPARATOR, line, end) :]
        try:
            found[_unescaped(line[:end])] = _unescaped(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def dump_properties(values: Mapping[str, str]) -> str:
    """Format keys and values as a file that parses to the same."""
    return "".join(f"{_escaped(k, key=True)}={_escaped(v)}\n" for k, v in values.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments; a backslash at the end joins a line with the next."""
    begun, parts = 0, list[str]()
    for number, raw in enumerate(_LINE_ENDS.split(text), 1):
        line = raw.lstrip(" \t\f")
        if not parts and (not line or line[0] in "#!"):
            continue
        begun = begun if parts else number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            parts.append(line[:-1])
            continue
        yield begun, "".join([*parts, line])
        parts = []
    if parts:
        yield begun, "".join(parts)


def _end(pattern: re.Pattern[str], line: str, at: int) -> int:
    """Return where a pattern's match at `at` ends, or `at` if it does not match."""
    found = pattern.match(line, at)
    return found.end() if found else at


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise ValueError("\\u needs four hexadecimal digits")
        return chr(int(escape[1:], 16)) if escape[0] == "u" else _SHORT.get(escape, escape)

    plain = _ESCAPE.sub(one, text)
    # Java writes characters beyond the basic plane as two escapes.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(text: str, *, key: bool = False) -> str:
    for character, short in (("\\", "\\"), *((c, s) for s, c in _SHORT.items())):
        text = text.replace(character, "\\" + short)
    if key:
        return re.sub(r"([=:#! ])", r"\\\1", text)
    return "\\" + text if text.startswith(" ") else text
