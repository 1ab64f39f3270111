"""Who is in the group, and where: `n0-host:port;n1-host:port;...`, as `dLegerPeers` has it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.files.durable import explained
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.remoting.addresses import bound_port, parse_address

_MOST: Final = 9
_ID: Final = re.compile(r"[a-zA-Z0-9_]{1,32}")


class OldLog(NamedTuple):
    """What a store had before it became a member, without headers of entries.

    Attributes:
        end: where its segments end, and the group's log begins; 0 without one.
        folder: of its segments.
        mark: tells it from others that end there; "" if that is not known. One that has expired
            has it still.
    """

    end: int = 0
    folder: str = ""
    mark: str = ""

    @property
    def told_end(self) -> int:
        """Where it ends, as long as messages of it are left; otherwise 0."""
        if not self.end:
            return 0
        with explained(self.folder, "read"):
            names = os.listdir(self.folder)
        return self.end if any(segment_start(name) is not None for name in names) else 0


class QueueEndsTold(NamedTuple):
    """Where the queues of a store end, as it tells other members.

    Attributes:
        known: whether the store knows all; otherwise it began without queues, and asks itself.
        ends: by topic, and by queueId as text.
        log_end: position behind which the log may have messages that are not counted.
        is_last: whether these are all; otherwise they are a page, which others follow.
    """

    known: bool
    ends: Mapping[str, Mapping[str, int]]
    log_end: int
    is_last: bool = True


def no_queue_ends() -> QueueEndsTold:
    """Return what a member says that knows of no queues."""
    return QueueEndsTold(known=False, ends={}, log_end=0)


class MemberStore(NamedTuple):
    """What a store that serves clients says of itself to the other members.

    Attributes:
        broker_name: `brokerName`.
        old: what it had before it became a member.
        queue_ends: returns where its queues end; any thread may call it, but it waits.
        knows_ends: returns whether these are all known.
    """

    broker_name: str
    old: OldLog
    queue_ends: Callable[[], QueueEndsTold]
    knows_ends: Callable[[], bool]


@dataclass(frozen=True)
class MemberGroup:
    """A group, and which member of it this is.

    Attributes:
        name: `dLegerGroup`; members refuse those of other groups.
        me: `dLegerSelfId`.
        addresses: `host:port` of each member by its id, in the order of `dLegerPeers`.
    """

    name: str
    me: str
    addresses: dict[str, str]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all members."""
        return tuple(self.addresses)

    @property
    def port(self) -> int:
        """The port of this member."""
        return parse_address(self.addresses[self.me])[1]

    def bound(self, address: str) -> socket.socket:
        """Return a socket that is bound to this member's port.

        Args:
            address: `dLegerBindAddress`.

        Raises:
            ServiceError: it cannot be bound.
        """
        try:
            return bound_port(address, self.port)
        except ServiceError as error:
            raise ServiceError(
                f"{error} This is the port of {self.me} in dLegerPeers: perhaps this member runs "
                "already."
            ) from error

    def require_members(self, ids: Iterable[str]) -> None:
        """Refuse `preferredLeaderId` if it names others.

        Raises:
            OptionError: it does.
        """
        for member in ids:
            if member not in self.addresses:
                raise OptionError(
                    f"preferredLeaderId names {member!r}, but dLegerPeers has "
                    f"{', '.join(self.addresses)} only."
                )

    @classmethod
    def of(cls, name: str, me: str, peers: str) -> MemberGroup:
        """Read a group from the values of RocketMQ's keys.

        Raises:
            OptionError: a value is wrong, or they contradict each other.
        """
        if not name:
            raise OptionError("dLegerGroup must name the group.")
        addresses: dict[str, str] = {}
        for peer in filter(None, (part.strip() for part in peers.split(";"))):
            if "," in peer:
                raise OptionError(
                    f"dLegerPeers has {peer!r}, with a comma: members are separated by `;`."
                )
            member, separator, address = peer.partition("-")
            if not (separator and _ID.fullmatch(member)):
                raise OptionError(f"dLegerPeers has {peer!r}; a member is ID-HOST:PORT.")
            if member in addresses:
                raise OptionError(f"dLegerPeers has two members {member}.")
            try:
                parse_address(address)
            except ServiceError as error:
                raise OptionError(f"dLegerPeers has {peer!r}: {error}") from None
            addresses[member] = address
        if not addresses:
            raise OptionError(
                "dLegerPeers must name all members of the group: n0-HOST:PORT;n1-HOST:PORT;..."
            )
        if len(addresses) > _MOST:
            raise OptionError(
                f"dLegerPeers has {len(addresses)} members; a group has up to {_MOST}."
            )
        if len(set(addresses.values())) < len(addresses):
            raise OptionError("dLegerPeers has two members with one address.")
        if me not in addresses:
            raise OptionError(
                f"dLegerSelfId is {me!r}, but dLegerPeers has {', '.join(addresses)} only."
            )
        return cls(name, me, addresses)
