"""Reads and takes the heartbeats of clients, and creates the groups that clients name.

All groups that gather are created with one write. (Upstream: ClientManageProcessor.heartBeat and
SubscriptionGroupManager.findSubscriptionGroupConfig, which write a file for each group and for each
retry topic.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.core.refusal import Reason, Refusal, shown
from rmqstore_spark.broker.core.subscriptions import (
    TAG,
    Heartbeat,
    Membership,
    Subscription,
    tag_codes,
)
from rmqstore_spark.broker.faces.remoting.lanes.handler_thread import HandlerThread
from rmqstore_spark.broker.faces.remoting.relaying import connection_of
from rmqstore_spark.broker.faces.remoting.row import refused
from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.layout.constants import is_listed_topic_name, is_safe_group_name
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.peerlog import PeerLog

_log = logging.getLogger(__name__)

_Refused = Mapping[str, RemotingError]


class _Gathered:
    """The groups that gather for one write.

    Attributes:
        groups: whether each needs its retry topic too, by name.
        done: the refused ones.
    """

    def __init__(self) -> None:
        self.groups: dict[str, bool] = {}
        self.done: asyncio.Future[_Refused] = asyncio.get_running_loop().create_future()


class NewGroups:
    """Creates groups. Use it in the thread of the event loop.

    Args:
        thread: writes the files.
        catalog: the groups and topics.
    """

    def __init__(self, thread: HandlerThread, catalog: Catalog) -> None:
        self._thread = thread
        self._catalog = catalog
        self._next: _Gathered | None = None
        self._work: asyncio.Task[None] | None = None

    async def make(self, names: Collection[str], *, with_topics: bool) -> _Refused:
        """Create groups that are missing.

        Args:
            names: of groups, which may exist.
            with_topics: create their retry topics too.

        Returns:
            Why groups could not be created, by name.
        """
        if self._next is None:
            self._next = _Gathered()
        mine = self._next
        for name in names:
            mine.groups[name] = mine.groups.get(name, False) or with_topics
        if self._work is None:
            self._work = asyncio.create_task(self._make_all())
        all_refused = await asyncio.shield(mine.done)
        return {name: all_refused[name] for name in names if name in all_refused}

    async def _make_all(self) -> None:
        try:
            while self._next is not None:
                gathered, self._next = self._next, None
                try:
                    found = await self._thread.run(self._make, gathered.groups)
                except RemotingError as error:  # too much waits
                    found = dict.fromkeys(gathered.groups, error)
                except Exception as error:  # noqa: BLE001 - for those that wait for it
                    gathered.done.set_exception(error)
                    continue
                gathered.done.set_result(found)
        finally:
            self._work = None

    def _make(self, groups: Mapping[str, bool]) -> _Refused:
        found = self._catalog.make_groups(groups)
        return {name: refused(error) for name, error in found.items()}


_SILENT_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 10.0
_MOST_REFUSED: Final = 1000
"""Groups whose refusal is logged."""


class Members:
    """Takes heartbeats. Use it in the thread of the event loop.

    Args:
        core: knows groups and clients.
        new_groups: creates groups.
    """

    def __init__(self, core: Core, new_groups: NewGroups) -> None:
        self._catalog = core.catalog
        self._clients = core.clients
        self._new_groups = new_groups
        self._loop = asyncio.get_running_loop()
        self._log = PeerLog(_log)
        self._refused: set[str] = set()

    async def hear(self, connection: RemotingConnection, beat: Heartbeat) -> RemotingError | None:
        """Take a heartbeat.

        Returns:
            Why the first of its groups is refused, with SUCCESS as its code if others are not;
            None if none is. Other requests of those that are refused fail for themselves.
        """
        names = [told.group for told in beat.consumers]
        found: list[tuple[str, RemotingError]] = []
        count = len(names) + len(beat.producers)
        if not all(map(self._catalog.is_known, names)):
            missing = await self._new_groups.make(names, with_topics=True)
            found = list(missing.items())
            beat = beat.without(missing)
        quiet = {
            told.group for told in beat.consumers if not self._catalog.group(told.group).is_notified
        }
        if connection.is_open:
            full = self._clients.hear(connection, beat, frozenset(quiet), self._loop.time())
            found += [(name, refused(error)) for name, error in full]
        if not found:
            return None
        for name, error in found:
            self._tell_refused(connection.peer, name, error)
        _, first = found[0]
        code = first.code if len(found) == count else ResponseCode.SUCCESS
        return RemotingError(code, first.remark)

    async def end_silent(self) -> None:
        """Close the connections of clients that send no heartbeats, until this is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for peer in self._clients.silent(self._loop.time() - _SILENT_SECONDS):
                self._log.warning(
                    peer.peer, "The client %s has sent no heartbeat for %d s; its connection was "
                    "closed.", escaped(peer.peer), int(_SILENT_SECONDS),
                )  # fmt: skip
                connection_of(peer).close()

    def _tell_refused(self, peer: str, group: str, error: RemotingError) -> None:
        """Log that a group is refused: once, though its clients send a heartbeat every 30 s."""
        if group in self._refused or len(self._refused) >= _MOST_REFUSED:
            return
        self._refused.add(group)
        _log.warning(
            "The group %s of %s is refused: %s", escaped(group), escaped(peer),
            escaped(error.remark),
        )  # fmt: skip


def heard(request: Command, error: RemotingError | None) -> Command:
    """Answer a heartbeat."""
    return request.answer() if error is None else request.answer(error.code, error.remark)


def require_tags(kind: str) -> None:
    """Refuse subscriptions with expressions that do not name tags.

    Raises:
        Refusal: this is one.
    """
    if kind != TAG:
        raise Refusal(
            Reason.WRONG, f"The broker does not support consumer to filter message by {shown(kind)}"
        )


_MOST_GROUPS: Final = 1024
_MOST_SUBSCRIPTIONS: Final = 1024
_MAX_BODY: Final = 1 << 20
"""Bytes. The event loop reads a heartbeat and hashes its tags, while all others wait."""
_MODELS: Final = ("BROADCASTING", "CLUSTERING")
_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)  # fmt: skip


def read_heartbeat(request: Command) -> Heartbeat:
    """Read a heartbeat.

    Raises:
        FrameError: it is none, or too long.
    """
    body = request.body
    if len(body) > _MAX_BODY:
        raise FrameError(f"a heartbeat has at most {_MAX_BODY} bytes, this one has {len(body)}")
    told = parse_body(body) if body else None
    if not isinstance(told, dict):
        raise FrameError("the heartbeat has no body")
    client_id = told.get("clientID")
    if not isinstance(client_id, str) or not 0 < len(client_id) <= MAX_NAME:
        raise FrameError(f"clientID must be 1 to {MAX_NAME} characters")
    producers = _list(told.get("producerDataSet"), _MOST_GROUPS)
    consumers = _list(told.get("consumerDataSet"), _MOST_GROUPS)
    return Heartbeat(
        client_id,
        request.language,
        request.version,
        tuple(_group(each) for each in producers),
        tuple(_membership(each) for each in consumers),
    )


def _membership(told: dict[str, Any]) -> Membership:
    found = [
        _subscription(each) for each in _list(told.get("subscriptionDataSet"), _MOST_SUBSCRIPTIONS)
    ]
    return Membership(
        _group(told),
        _enum(told.get("consumeType"), _TYPES),
        _enum(told.get("messageModel"), _MODELS),
        _enum(told.get("consumeFromWhere"), _FROM_WHERE),
        {each.topic: each for each in found},
    )


def _subscription(told: dict[str, Any]) -> Subscription:
    topic, expression = told.get("topic"), told.get("subString") or "*"
    kind = told.get("expressionType") or TAG
    if not isinstance(topic, str) or not is_listed_topic_name(topic):
        raise FrameError("a subscription has no valid topic")
    if not isinstance(expression, str) or not isinstance(kind, str):
        raise FrameError(f"the subscription of the topic {topic} is not text")
    # Not its `codeSet`: C++ sends zeros there.
    try:
        codes = tag_codes(expression) if kind == TAG else None
    except Refusal as error:
        raise FrameError(error.remark) from error
    return Subscription(topic, expression, kind[:MAX_NAME], _number(told.get("subVersion")), codes)


def _group(told: dict[str, Any]) -> str:
    name = told.get("groupName")
    if not isinstance(name, str) or not is_safe_group_name(name):
        raise FrameError("a groupName in the heartbeat is not valid")
    return name


def _list(given: Any, most: int) -> list[dict[str, Any]]:
    found = [] if given is None else given
    if not isinstance(found, list) or len(found) > most:
        raise FrameError(f"a set in the heartbeat must have at most {most} entries")
    if not all(isinstance(each, dict) for each in found):
        raise FrameError("a set in the heartbeat holds more than objects")
    return found


def _enum(given: Any, names: tuple[str, ...]) -> str:
    """Return the name of a value that is a name or its place."""
    if isinstance(given, str) and given in names:
        return given
    if type(given) is int and 0 <= given < len(names):
        return names[given]
    return names[-1] if given is None else names[0]


def _number(given: Any) -> int:
    text = str(given)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
