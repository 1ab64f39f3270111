"""Accounts, and what each may do with topics and consumer groups.

Upstream: PlainPermissionManager, PlainAccessResource, Permission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag
from typing import Final, Protocol

from rmqstore_spark.broker.acl.addresses import WhiteAddresses
from rmqstore_spark.layout.constants import RETRY_GROUP_TOPIC_PREFIX, is_system_topic
from rmqstore_spark.remoting.access.signing import SecretKey


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


@dataclass(frozen=True)
class Account:
    """An account.

    Attributes:
        access_key: its name.
        secret: signs its requests.
        white: clients from these addresses may do anything under its name, without a signature.
        is_admin: whether it may administer the broker; without rights of its own, it may do
            anything.
        default_topic, default_group: rights for what is not listed. The first does not count for
            the broker's own topics: they hold messages of other topics.
        topics, groups: rights by name.
    """

    access_key: str
    secret: SecretKey
    white: WhiteAddresses = field(default_factory=WhiteAddresses)
    is_admin: bool = False
    default_topic: Right = Right.DENY
    default_group: Right = Right.DENY
    topics: Mapping[str, Right] = field(default_factory=dict)
    groups: Mapping[str, Right] = field(default_factory=dict)

    @property
    def may_do_anything(self) -> bool:
        """Whether it is an administrator without rights of its own."""
        return self.is_admin and not self.topics and not self.groups

    def may_everywhere(self, right: Right) -> bool:
        """Return whether it has one of some rights for all topics, the broker's own included."""
        if self.may_do_anything:
            return True
        owned = (self.default_topic, *self.topics.values())
        if right is Right.SUB:  # their retry topics
            owned += tuple(self.groups.values())
        return all(each & right for each in owned)

    def may(self, need: Need) -> bool:
        """Return whether it has a right that is needed."""
        if self.may_do_anything:
            return True
        if need.is_group:
            owned = self.groups.get(need.name, self.default_group)
        else:
            default = Right.DENY if is_system_topic(need.name) else self.default_topic
            owned = self.topics.get(need.name, default)
        return bool(owned & need.right)


@dataclass(frozen=True)
class Accounts:
    """All accounts.

    Attributes:
        white: clients from these addresses may do anything, without an account.
        by_key: accounts by access key.
    """

    white: WhiteAddresses = field(default_factory=WhiteAddresses)
    by_key: Mapping[str, Account] = field(default_factory=dict)


class AccountSource(Protocol):
    """Has the accounts that count now."""

    @property
    def accounts(self) -> Accounts:
        """The accounts."""
