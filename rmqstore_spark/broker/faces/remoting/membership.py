"""Takes the heartbeats of clients, and creates the groups that they name.

Upstream: ClientManageProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.broker.core.subscriptions import TAG, Heartbeat
from rmqstore_spark.broker.core.texts import shown
from rmqstore_spark.broker.faces.remoting.lanes.new_groups import NewGroups
from rmqstore_spark.broker.faces.remoting.refusals import refused
from rmqstore_spark.broker.faces.remoting.telling import connection_of
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.peerlog import PeerLog

_log = logging.getLogger(__name__)

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
