r"""Reads and formats files of `key = value` lines as `java.util.Properties` does.

The library javaproperties does the work. Files are read as UTF-8; Java's own escapes (`\u4e3b`) are
understood too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import javaproperties

from rmqstore_spark.errors import OptionError

_T = TypeVar("_T")

_MAX_FILE_BYTES: Final = 1 << 20

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_CONTINUED: Final = re.compile(r"\\[\r\n]")
_MOST_CONTINUED: Final = 200
"""javaproperties needs a time that grows with the square of the lines of an entry."""


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a file into keys and values. If a key occurs twice, the last value counts.

    Raises:
        OptionError: the file cannot be read, or is not a properties file.
    """
    return _read(path, parse_properties)


def edit_properties(path: str | os.PathLike[str], changes: Mapping[str, str]) -> str:
    """Return the text of a file with some keys changed, or added at its end.

    All else stays as it is: other keys, comments and their order.

    Raises:
        OptionError: the file cannot be read, or is not a properties file.
    """

    def edited(text: str) -> str:
        found = parse_properties(text)
        file = javaproperties.PropertiesFile.loads(text)
        for key, value in changes.items():
            if found.get(key) != value:
                file[key] = value
        return file.dumps(ensure_ascii=False)

    return _read(path, edited)


def _read(path: str | os.PathLike[str], understand: Callable[[str], _T]) -> _T:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
        return understand(data.decode("utf-8-sig"))
    except OSError as error:
        raise OptionError(f"{path} could not be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise OptionError(f"{path} is not a properties file: {error}.") from error


def format_properties(values: Mapping[str, str]) -> str:
    """Return the text of a file with these keys and values."""
    return javaproperties.dumps(values, timestamp=False, ensure_ascii=False)


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
