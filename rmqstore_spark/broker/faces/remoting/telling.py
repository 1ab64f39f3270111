"""Tells clients what they did not ask for.

Upstream: Broker2Client.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, cast

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.administration.groups import Reset
from rmqstore_spark.broker.core.peer import Peer
from rmqstore_spark.broker.core.transactional.checking import Check
from rmqstore_spark.broker.faces.remoting.reports import reset_list, reset_table
from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.peerlog import PeerLog

_CPP: Final = "CPP"


def connection_of(peer: Peer) -> RemotingConnection:
    """Return the connection of a client of this face."""
    return cast(RemotingConnection, peer)


class Telling:
    """Tells clients. Create it in the thread of a running event loop.

    Args:
        broker_name: the broker's name.
    """

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._loop = asyncio.get_running_loop()
        self._log = PeerLog(logging.getLogger(__name__))

    def group_changed(self, peer: Peer, group: str) -> None:
        """Tell a consumer that its group has other members. In the event loop."""
        told = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
        connection_of(peer).one_way(told)

    def begin_at(self, reset: Reset) -> None:
        """Tell the members of a group where they begin; they report that. From any thread."""
        asked = reset.asked
        # As 4.9.8 sends it, whatever it was asked; without isForce, the C++ client aborts.
        ext = {
            "topic": asked.topic, "group": asked.group, "timestamp": str(asked.timestamp),
            "isForce": "false",
        }  # fmt: skip
        body, for_cpp = (make(self._broker_name, reset) for make in (reset_table, reset_list))
        told = [
            (connection_of(peer), for_cpp if member.language == _CPP else body)
            for peer, member in list(reset.group.members.items())
        ]
        self._loop.call_soon_threadsafe(_send_all, told, ext)

    def ask_outcome(self, peer: Peer, check: Check) -> None:
        """Ask a producer for the outcome of a transaction. From any thread."""
        ext = {
            "tranStateTableOffset": str(check.half.queue_offset),
            "commitLogOffset": str(check.half.physical_offset),
            "offsetMsgId": check.msg_id,
        }
        if check.key:
            ext["msgId"] = ext["transactionId"] = check.key
        asked = Command(RequestCode.CHECK_TRANSACTION_STATE, ext, check.record)
        self._loop.call_soon_threadsafe(self._ask, connection_of(peer), asked)

    def _ask(self, connection: RemotingConnection, asked: Command) -> None:
        """Send a check. A connection that has ended sends nothing."""
        try:
            connection.one_way(asked)
        except FrameError as error:
            self._log.warning(
                connection.peer, "%s was not asked for the outcome of a transaction: %s",
                escaped(connection.peer), error,
            )  # fmt: skip


def _send_all(members: list[tuple[RemotingConnection, bytes]], ext: dict[str, str]) -> None:
    for connection, body in members:
        with suppress(FrameError):  # the topic has too many queues
            connection.one_way(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), body))
