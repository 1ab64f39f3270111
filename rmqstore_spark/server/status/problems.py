"""Remembers the last warnings and errors that the process has logged."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MOST: Final = 200
_LONGEST: Final = 2000
_PACKAGE: Final = "rmqstore_spark"


@dataclass(frozen=True)
class LoggedLine:
    """A line of the log.

    Attributes:
        time: seconds since the epoch.
        level: WARNING or above.
        origin: the module that logged it.
        text: the line, cut if it is long.
    """

    time: float
    level: str
    origin: str
    text: str


class Problems(logging.Handler):
    """Keeps the last lines of this package's log that are warnings or worse, until `close`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[LoggedLine] = deque(maxlen=_MOST)
        self._reading = threading.Lock()
        logging.getLogger(_PACKAGE).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - who logs must not fail because of that
            self.handleError(record)
            return
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text} {record.exc_info[1]!r}"
        origin = record.name.removeprefix(f"{_PACKAGE}.")
        line = LoggedLine(record.created, record.levelname, origin, text[:_LONGEST])
        with self._reading:
            self._lines.append(line)

    def newest(self, most: int = _MOST) -> Sequence[LoggedLine]:
        """Return the last lines, the newest first."""
        with self._reading:
            return list(self._lines)[::-1][:most]

    def close(self) -> None:
        """Keep no more lines."""
        logging.getLogger(_PACKAGE).removeHandler(self)
        super().close()
