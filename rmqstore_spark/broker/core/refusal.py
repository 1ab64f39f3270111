"""Why a broker refuses what a client asks. Each face has codes of its own for the reasons."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.errors import RmqStoreError


class Reason(Enum):
    """A kind of refusals."""

    WRONG = auto()
    """The request is wrong, or fails."""
    BUSY = auto()
    """There is too much of something; later it may be less."""
    UNAVAILABLE = auto()
    """The store takes nothing now."""
    SLAVE = auto()
    """The master does that."""
    ILLEGAL_MESSAGE = auto()
    NOT_PERMITTED = auto()
    NO_TOPIC = auto()
    NO_GROUP = auto()
    NOT_FOUND = auto()
    NO_SUBSCRIPTION = auto()
    OLD_SUBSCRIPTION = auto()
    UNSUPPORTED = auto()
    NOT_CONNECTED = auto()
    """The group has no consumer."""


class Refusal(RmqStoreError):
    """A broker refuses what a client asks.

    Args:
        reason: the kind.
        remark: the text, for a person.
    """

    def __init__(self, reason: Reason, remark: str) -> None:
        self.reason = reason
        self.remark = remark
        super().__init__(reason, remark)

    def __str__(self) -> str:
        return self.remark


_SHOWN: Final = 255
"""Most characters of a name that is shown: as many as one of a group may have."""


def shown(name: str) -> str:
    """Return what a client gave as a name, as far as it is short, and cannot deceive a reader."""
    return escaped(name[:_SHOWN])
