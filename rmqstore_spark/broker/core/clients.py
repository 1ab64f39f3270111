"""The clients of a broker: which connections belong to which groups.

Changed in the thread of the event loop; others may read. Upstream: ConsumerManager,
ConsumerGroupInfo, ProducerManager, ClientManageProcessor, DefaultConsumerIdsChangeListener.

Members of a group hear that others have come or gone, and then ask who they all are: a change of a
group of n members costs n answers of n names. When n clients start together, or their host is gone,
that would be n * n * n names. So what changes in a turn of the event loop is told once, and a group
that was told rests in proportion to its size. A member that hears of a change later has the same
picture in the end; by itself, each looks every 20 seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.refusal import Reason, Refusal, shown
from rmqstore_spark.broker.core.subscriptions import Heartbeat, Membership, Subscription

_REST_S: Final = 0.001
"""For each member: a notice, and the list for which it asks, take a fraction of it."""
_AT_ONCE: Final = 256
"""Notices after which others have their turn."""


class GroupNotices:
    """Tells members of changes. Use it in the thread of a running event loop.

    Args:
        members: returns the members of a group who want to know, by its name.
        tell: tells one of them that the group has changed.
    """

    def __init__(
        self,
        members: Callable[[str], Collection[Peer]],
        tell: Callable[[Peer, str], None],
    ) -> None:
        self._members = members
        self._tell_one = tell
        self._loop = asyncio.get_running_loop()
        self._resting: set[str] = set()
        self._again: set[str] = set()
        self._due: deque[tuple[str, Peer]] = deque()

    def changed(self, group: str) -> None:
        """Tell the members of a group, soon, that it has changed."""
        if group in self._resting:
            self._again.add(group)
        else:
            self._resting.add(group)
            self._loop.call_soon(self._tell, group)

    def _tell(self, group: str) -> None:
        members = self._members(group)
        self._loop.call_later(len(members) * _REST_S, self._rested, group)
        is_idle = not self._due
        self._due.extend((group, member) for member in members)
        if is_idle:
            self._send()

    def _send(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._due))):
            group, connection = self._due.popleft()
            if connection.is_open:
                self._tell_one(connection, group)
        if self._due:
            self._loop.call_soon(self._send)

    def _rested(self, group: str) -> None:
        self._resting.remove(group)
        if group in self._again:
            self._again.remove(group)
            self.changed(group)


class Peer(Protocol):
    """A connection of a client. It is the key of what the client has: groups, requests.

    Attributes:
        peer: address of the client, as text.
    """

    peer: str

    @property
    def is_open(self) -> bool:
        """Whether the client can be told something."""

    @property
    def has_room(self) -> bool:
        """Whether it reads what it was told."""


_MOST_MEMBERS: Final = 100_000
"""Most memberships of all connections in all groups."""
_MOST_CHARACTERS: Final = 16 << 20
"""Most characters of the subscriptions of all groups."""


@dataclass(frozen=True)
class Member:
    """A connection in a group.

    Attributes:
        client_id: the client's name.
        language, version: as its requests say.
    """

    client_id: str
    language: str
    version: int


@dataclass(frozen=True, eq=False)
class MemberNames:
    """The names of a group's members, each once, until they change.

    After a change, all members ask for them: who tells them can keep what it tells.
    """

    names: tuple[str, ...]


@dataclass
class _Joined:
    """The groups of a connection, by name: in order, and each once."""

    producers: dict[str, None] = field(default_factory=dict)
    consumers: dict[str, None] = field(default_factory=dict)


@dataclass
class Group:
    """A consumer group of which at least one client is connected.

    Attributes:
        told: how it consumes, as its member said last, with its subscriptions.
        is_notified: whether its members are told when others come or go.
        members: by connection, in the order in which they came.
        listed: the members' names; None until one asks.
    """

    told: Membership
    is_notified: bool
    members: dict[Peer, Member] = field(default_factory=dict)
    listed: MemberNames | None = None

    def subscription(self, topic: str) -> Subscription | None:
        """Return what the group consumes of a topic; None if nothing."""
        return self.told.subscriptions.get(topic)


class Clients:
    """Groups of consumers and producers, and the times of heartbeats.

    It is created in the thread of a running event loop.

    Args:
        tell: tells a client that the members of a group have changed.
    """

    def __init__(self, tell: Callable[[Peer, str], None]) -> None:
        self._notices = GroupNotices(self._notified, tell)
        self._joined: dict[Peer, _Joined] = {}
        self._consumers: dict[str, Group] = {}
        self._producers: dict[str, dict[Peer, Member]] = {}
        self._heard: dict[Peer, float] = {}
        self._requesters: dict[str, Peer] = {}
        self._names: dict[Peer, str] = {}
        self._memberships = 0
        self._sizes: dict[str, int] = {}
        self._size = 0  # of all groups together

    def group(self, name: str) -> Group | None:
        """Return a consumer group; None if no member of it is connected."""
        return self._consumers.get(name)

    def consumer_groups(self) -> dict[str, Group]:
        """Return the consumer groups of which a member is connected, by name."""
        return self._consumers.copy()

    def consumers(self, name: str) -> Group:
        """Return a consumer group of which members are connected.

        Raises:
            Refusal: there is none.
        """
        found = self._consumers.get(name)
        if found is None:
            raise Refusal(Reason.NOT_CONNECTED, f"the consumer group[{escaped(name)}] not online")
        return found

    def connected_producers(self, name: str) -> list[tuple[Peer, Member]]:
        """Return the connected members of a producer group.

        Raises:
            Refusal: there are none.
        """
        found = self.producers(name)
        if not found:
            raise Refusal(Reason.WRONG, f"the producer group[{escaped(name)}] not exist")
        return found

    def producers(self, name: str) -> list[tuple[Peer, Member]]:
        """Return the connected members of a producer group."""
        return list(self._producers.get(name, {}).items())

    def producer_groups(self) -> dict[str, list[tuple[Peer, Member, float]]]:
        """Return the connected members of all producer groups, by the group's name.

        Returns:
            With the seconds since the last heartbeat of each. In the event loop only.
        """
        now = asyncio.get_running_loop().time()
        return {
            name: [(at, member, now - self._heard[at]) for at, member in members.items()]
            for name, members in self._producers.items()
        }

    def requester(self, client_id: str) -> Peer | None:
        """Return the connection of a producer by its name; None if it is not connected."""
        return self._requesters.get(client_id)

    def listed(self, group: str) -> MemberNames:
        """Return the names of a consumer group's members.

        Raises:
            Refusal: no member is connected.
        """
        found = self._consumers.get(group)
        if found is None:
            raise Refusal(Reason.WRONG, f"no consumer for this group, {shown(group)}")
        if found.listed is None:
            names = dict.fromkeys(member.client_id for member in found.members.values())
            found.listed = MemberNames(tuple(names))
        return found.listed

    def consumers_of(self, topic: str) -> set[str]:
        """Return the groups whose members consume a topic."""
        return {name for name, group in self.consumer_groups().items() if group.subscription(topic)}

    def hear(
        self,
        connection: Peer,
        beat: Heartbeat,
        quiet: frozenset[str],
        now: float,
    ) -> list[tuple[str, Refusal]]:
        """Take note of a heartbeat.

        Args:
            connection: on which it came.
            beat: what it says.
            quiet: the groups whose members are not told of others.
            now: the event loop's time.

        Returns:
            The groups that the connection could not join, and why: there is no room for more.
        """
        self._heard[connection] = now
        member = Member(beat.client_id, beat.language, beat.version)
        refused = []
        if beat.producers:
            self._name(connection, beat.client_id)
        for name in beat.producers:
            try:
                self._join_producers(connection, member, name)
            except Refusal as error:
                refused.append((name, error))
        for told in beat.consumers:
            try:
                self._join(connection, member, told, told.group not in quiet)
            except Refusal as error:
                refused.append((told.group, error))
        return refused

    def leave(self, connection: Peer, producer_group: str, consumer_group: str) -> None:
        """Take a connection out of a group of each kind; empty names mean none."""
        joined = self._joined.get(connection, _Joined())
        joined.producers.pop(producer_group, None)
        joined.consumers.pop(consumer_group, None)
        self._leave_producers(connection, producer_group)
        self._leave_consumers(connection, consumer_group)

    def closed(self, connection: Peer) -> None:
        """Take a connection that has ended out of all groups."""
        if self._heard.pop(connection, None) is None:
            return
        client_id = self._names.pop(connection, None)
        if client_id is not None:
            del self._requesters[client_id]
        joined = self._joined.pop(connection, _Joined())
        for name in joined.producers:
            self._leave_producers(connection, name)
        for name in joined.consumers:
            self._leave_consumers(connection, name)

    def silent(self, before: float) -> list[Peer]:
        """Return the connections whose last heartbeat came before a time."""
        return [connection for connection, heard in self._heard.items() if heard < before]

    def _name(self, connection: Peer, client_id: str) -> None:
        """Let replies find a producer. A name belongs to the connection that had it first."""
        if client_id not in self._requesters and connection not in self._names:
            self._requesters[client_id] = connection
            self._names[connection] = client_id

    def _join_producers(self, connection: Peer, member: Member, name: str) -> None:
        of_group = self._producers.get(name, {})
        self._check_room(connection in of_group)
        self._memberships += connection not in of_group
        self._producers.setdefault(name, {})[connection] = member
        self._joined.setdefault(connection, _Joined()).producers[name] = None

    def _join(self, connection: Peer, member: Member, told: Membership, is_notified: bool) -> None:
        group = self._consumers.get(told.group)
        is_new = group is None or connection not in group.members
        self._check_room(not is_new)
        size = self._size_of(told)
        self._size += size - self._sizes.get(told.group, 0)
        self._sizes[told.group] = size
        if group is None:
            group = self._consumers[told.group] = Group(
                replace(told, subscriptions={}), is_notified
            )
        self._memberships += is_new
        if group.members.get(connection) != member:
            group.listed = None
        group.members[connection] = member
        self._joined.setdefault(connection, _Joined()).consumers[told.group] = None
        group.is_notified = is_notified
        before = group.told.subscriptions
        subscriptions = {
            topic: before[topic] if topic in before and before[topic].version > new.version else new
            for topic, new in told.subscriptions.items()
        }
        group.told = replace(told, subscriptions=subscriptions)  # others read it meanwhile
        if is_new or before.keys() != subscriptions.keys():
            self._notices.changed(told.group)

    def _size_of(self, told: Membership) -> int:
        """Return how long a group's subscriptions are, if there is room for them."""
        size = sum(
            len(one.topic) + len(one.expression) + len(one.kind)
            for one in told.subscriptions.values()
        )
        if self._size - self._sizes.get(told.group, 0) + size > _MOST_CHARACTERS:
            raise Refusal(Reason.BUSY, "the subscriptions of all groups are too long")
        return size

    def _check_room(self, is_known: bool) -> None:
        if not is_known and self._memberships >= _MOST_MEMBERS:
            raise Refusal(
                Reason.BUSY,
                f"the broker has {_MOST_MEMBERS} members of groups, the maximum",
            )

    def _leave_producers(self, connection: Peer, name: str) -> None:
        of_group = self._producers.get(name, {})
        if of_group.pop(connection, None) is not None:
            self._memberships -= 1
            if not of_group:
                del self._producers[name]

    def _leave_consumers(self, connection: Peer, name: str) -> None:
        group = self._consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        self._memberships -= 1
        group.listed = None
        if not group.members:
            del self._consumers[name]
            self._size -= self._sizes.pop(name)
        self._notices.changed(name)

    def _notified(self, name: str) -> list[Peer]:
        """Return the members of a group that are told of changes: all, or none."""
        group = self._consumers.get(name)
        return list(group.members) if group is not None and group.is_notified else []
