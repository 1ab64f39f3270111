"""Makes text and bytes from others safe for a terminal and for JSON.

Topics, properties, bodies, file names and the errors that quote them come from producers and from
disk. They must not move the cursor, colour a terminal or reverse its text.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from rmqstore_spark.base.printable import escaped, is_printable

__all__ = ["escaped", "is_text", "json_text", "shortened", "show_time", "text_pieces"]

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PIECE: Final = 1 << 20


def shortened(text: str, most: int) -> str:
    """Return the text, cut to `most` characters; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def is_text(body: memoryview) -> bool:
    """Return whether a body is UTF-8 without control characters. Line ends and tabs are text."""
    try:
        return not any(map(_CONTROL.search, text_pieces(body)))
    except UnicodeDecodeError:
        return False


def text_pieces(body: memoryview) -> Iterator[str]:
    """Decode a body of UTF-8 in pieces: as a whole, its text can take four times its bytes.

    Raises:
        UnicodeDecodeError: the body is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for first in range(0, len(body), _PIECE):
        yield decoder.decode(body[first : first + _PIECE])
    yield decoder.decode(b"", final=True)


def show_time(moment: datetime) -> str:
    """Format a time as `2024-05-01T08:00:00.000Z`, a form that every option for a time accepts."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON in which every character is printable."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, ensure_ascii=not _prints_unicode(), indent=indent, separators=separators
    )
    if text.isprintable():
        return text
    # Unprintable characters occur only inside strings, except for the line ends of `indent`.
    return "".join(
        char if char == "\n" or is_printable(char) else json.dumps(char)[1:-1] for char in text
    )


def _prints_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("_", "-") in ("utf-8", "utf8")
