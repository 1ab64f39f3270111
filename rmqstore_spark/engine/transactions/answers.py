"""The answers to requests to end transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import HalfId
from rmqstore_spark.reader.transactions import Transaction

COMMITTED: Final = "COMMITTED"
ROLLED_BACK: Final = "ROLLED_BACK"
ENDED_BEFORE: Final = "ENDED_BEFORE"


@dataclass(frozen=True)
class Ended:
    """The answer to a request to end a transaction.

    Attributes:
        status: COMMITTED, ROLLED_BACK, or ENDED_BEFORE: the transaction had ended, however, and
            nothing was stored. Otherwise a status of a put, and the transaction waits on.
        remark: why it waits on, or what its message lacks that is in the log.
    """

    status: str
    remark: str = ""


def unknown(half: HalfId, group: str) -> Ended:
    """Return the answer for a half message that a producer group does not have."""
    return Ended(
        PutStatus.MESSAGE_ILLEGAL,
        f"There is no half message of the producer group {group[:255]!r} at offset "
        f"{half.queue_offset} (physical offset {half.physical_offset}).",
    )


def answers(
    found: Sequence[Transaction | Ended], statuses: dict[int, str], lacking: str
) -> list[Ended]:
    """Return the answers to a request.

    Args:
        found: n, the transaction of each half message of the request, or the answer if it has none
            that waits.
        statuses: COMMITTED or ROLLED_BACK, by the newest half message of those that have ended now.
        lacking: what their messages lack that are in the log.
    """
    made = []
    for one in found:
        if isinstance(one, Ended):
            made.append(one)
            continue
        offset = one.place.queue_offset
        status = statuses.get(offset)
        if status is not None:
            made.append(Ended(status, "" if status == ENDED_BEFORE else lacking))
            statuses[offset] = ENDED_BEFORE  # if the request names it again
        else:
            made.append(
                Ended(
                    PutStatus.MESSAGE_ILLEGAL,
                    "The half message is damaged, or names no topic and queue, or has a delay that "
                    "is not a number.",
                )
            )
    return made
