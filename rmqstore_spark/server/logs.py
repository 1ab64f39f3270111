"""The log of the store process, on stderr: one line for each event, as text or as JSON.

    2026-11-21T04:42:31.123Z INFO store: 3 topics, log 0 to 104857600
    {"time":"2026-11-21T04:42:31.123Z","level":"INFO","logger":"...","message":"..."}

Topics, file names and addresses come from others, so unprintable characters are escaped. A
traceback stays within the line of its event.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Final

from rmqstore_spark.base.printable import escaped

FORMATS: Final = ("text", "json")

_PACKAGE: Final = "rmqstore_spark"


def configure_logging(form: str, level: int | str = logging.INFO) -> None:
    """Send this package's log to stderr, and nowhere else.

    Args:
        form: one of FORMATS.
        level: lowest level that is logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    logger = logging.getLogger(_PACKAGE)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"{_moment(record)} {record.levelname} {_trouble(self, record)}"
        return escaped(text)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, separators=(",", ":"))


def _trouble(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + formatter.formatException(record.exc_info)
    return text
