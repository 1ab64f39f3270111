"""Texts of clients, as they are shown in answers and in the log."""

from __future__ import annotations

from typing import Final

from rmqstore_spark.base.printable import escaped

MAX_NAME: Final = 255
"""Most characters of a name that is shown: as many as one of a group may have."""


def shown(name: str) -> str:
    """Return what a client gave as a name, as far as it is short, and cannot deceive a reader."""
    return escaped(name[:MAX_NAME])
