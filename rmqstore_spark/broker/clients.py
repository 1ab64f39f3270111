"""The clients of a broker: which connections belong to which groups.

Changed in the thread of the event loop; others may read. Upstream: ConsumerManager,
ConsumerGroupInfo, ProducerManager, ClientManageProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from rmqstore_spark.broker.heartbeat import Heartbeat, Membership, Subscription
from rmqstore_spark.broker.notices import GroupNotices
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection

__all__ = ["Clients", "Group", "Member"]

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
        listed: the answer to members that ask for all of them; empty until one asks.
    """

    told: Membership
    is_notified: bool
    members: dict[RemotingConnection, Member] = field(default_factory=dict)
    listed: bytes = b""

    def subscription(self, topic: str) -> Subscription | None:
        """Return what the group consumes of a topic; None if nothing."""
        return self.told.subscriptions.get(topic)


class Clients:
    """Groups of consumers and producers, and the times of heartbeats.

    It is created in the thread of a running event loop.
    """

    def __init__(self) -> None:
        self._notices = GroupNotices(self._notified)
        self._joined: dict[RemotingConnection, _Joined] = {}
        self._consumers: dict[str, Group] = {}
        self._producers: dict[str, dict[RemotingConnection, Member]] = {}
        self._heard: dict[RemotingConnection, float] = {}
        self._requesters: dict[str, RemotingConnection] = {}
        self._names: dict[RemotingConnection, str] = {}
        self._memberships = 0
        self._sizes: dict[str, int] = {}
        self._size = 0  # of all groups together

    def group(self, name: str) -> Group | None:
        """Return a consumer group; None if no member of it is connected."""
        return self._consumers.get(name)

    def producers(self, name: str) -> list[tuple[RemotingConnection, Member]]:
        """Return the connected members of a producer group."""
        return list(self._producers.get(name, {}).items())

    def producer_groups(
        self, now: float
    ) -> dict[str, list[tuple[RemotingConnection, Member, float]]]:
        """Return the connected members of all producer groups, by the group's name.

        Args:
            now: the event loop's time.

        Returns:
            With the seconds since the last heartbeat of each.
        """
        return {
            name: [(at, member, now - self._heard[at]) for at, member in members.items()]
            for name, members in self._producers.items()
        }

    def requester(self, client_id: str) -> RemotingConnection | None:
        """Return the connection of a producer by its name; None if it is not connected."""
        return self._requesters.get(client_id)

    def listed(self, group: str) -> bytes:
        """Return the names of a consumer group's members, each once, as the body of an answer.

        Empty if no member is connected. It is kept: after a change, all members ask for it.
        """
        found = self._consumers.get(group)
        if found is None:
            return b""
        if not found.listed:
            names = list(dict.fromkeys(member.client_id for member in found.members.values()))
            found.listed = dump_body({"consumerIdList": names})
        return found.listed

    def consumers_of(self, topic: str) -> set[str]:
        """Return the groups whose members consume a topic."""
        return {name for name, group in self._consumers.copy().items() if group.subscription(topic)}

    def hear(
        self,
        connection: RemotingConnection,
        request: Command,
        beat: Heartbeat,
        quiet: frozenset[str],
        now: float,
    ) -> list[tuple[str, RemotingError]]:
        """Take note of a heartbeat.

        Args:
            connection, request: as it came.
            beat: what it says.
            quiet: the groups whose members are not told of others.
            now: the event loop's time.

        Returns:
            The groups that the connection could not join, and why: there is no room for more.
        """
        self._heard[connection] = now
        member = Member(beat.client_id, request.language, request.version)
        refused = []
        if beat.producers:
            self._name(connection, beat.client_id)
        for name in beat.producers:
            try:
                self._join_producers(connection, member, name)
            except RemotingError as error:
                refused.append((name, error))
        for told in beat.consumers:
            try:
                self._join(connection, member, told, told.group not in quiet)
            except RemotingError as error:
                refused.append((told.group, error))
        return refused

    def leave(
        self, connection: RemotingConnection, producer_group: str, consumer_group: str
    ) -> None:
        """Take a connection out of a group of each kind; empty names mean none."""
        joined = self._joined.get(connection, _Joined())
        joined.producers.pop(producer_group, None)
        joined.consumers.pop(consumer_group, None)
        self._leave_producers(connection, producer_group)
        self._leave_consumers(connection, consumer_group)

    def closed(self, connection: RemotingConnection) -> None:
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

    def silent(self, before: float) -> list[RemotingConnection]:
        """Return the connections whose last heartbeat came before a time."""
        return [connection for connection, heard in self._heard.items() if heard < before]

    def _name(self, connection: RemotingConnection, client_id: str) -> None:
        """Let replies find a producer. A name belongs to the connection that had it first."""
        if client_id not in self._requesters and connection not in self._names:
            self._requesters[client_id] = connection
            self._names[connection] = client_id

    def _join_producers(self, connection: RemotingConnection, member: Member, name: str) -> None:
        of_group = self._producers.get(name, {})
        self._check_room(connection in of_group)
        self._memberships += connection not in of_group
        self._producers.setdefault(name, {})[connection] = member
        self._joined.setdefault(connection, _Joined()).producers[name] = None

    def _join(
        self, connection: RemotingConnection, member: Member, told: Membership, is_notified: bool
    ) -> None:
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
            group.listed = b""
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
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY, "the subscriptions of all groups are too long"
            )
        return size

    def _check_room(self, is_known: bool) -> None:
        if not is_known and self._memberships >= _MOST_MEMBERS:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"the broker has {_MOST_MEMBERS} members of groups, the maximum",
            )

    def _leave_producers(self, connection: RemotingConnection, name: str) -> None:
        of_group = self._producers.get(name, {})
        if of_group.pop(connection, None) is not None:
            self._memberships -= 1
            if not of_group:
                del self._producers[name]

    def _leave_consumers(self, connection: RemotingConnection, name: str) -> None:
        group = self._consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        self._memberships -= 1
        group.listed = b""
        if not group.members:
            del self._consumers[name]
            self._size -= self._sizes.pop(name)
        self._notices.changed(name)

    def _notified(self, name: str) -> list[RemotingConnection]:
        """Return the members of a group that are told of changes: all, or none."""
        group = self._consumers.get(name)
        return list(group.members) if group is not None and group.is_notified else []
