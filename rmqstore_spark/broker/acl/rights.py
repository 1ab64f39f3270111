"""What may be done with a topic or a consumer group (upstream: Permission)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag
from typing import Final

from rmqstore_spark.layout.constants import RETRY_GROUP_TOPIC_PREFIX


class Right(Flag):
    """What an account may do with a topic or a group. Nothing at all is DENY."""

    DENY = 0
    PUB = 4
    SUB = 8
    ANY = 12

    @property
    def words(self) -> str:
        """The right, or either of two, for people."""
        return "PUB or SUB" if self is Right.ANY else str(self.name)


RIGHTS: Final = {
    "DENY": Right.DENY,
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.ANY,
    "SUB|PUB": Right.ANY,
}
"""Rights as files write them."""


@dataclass(frozen=True)
class Need:
    """What a request needs.

    Attributes:
        is_group: whether it is about a group, or a topic.
        name: of the group or topic.
        right: one of these.
    """

    is_group: bool
    name: str
    right: Right

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'}:{self.name}"


def need_of_topic(name: str, right: Right) -> Need:
    """Return what a request for a topic needs: for a retry topic, SUB of its group."""
    if name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return need_of_group(name.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
    return Need(False, name, right)


def need_of_group(name: str) -> Need:
    """Return what a request for a group needs."""
    return Need(True, name, Right.SUB)
