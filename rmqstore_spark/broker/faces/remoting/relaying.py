"""Passes on what one client has for another: replies, and administrators' questions to consumers.

Upstream: ReplyMessageProcessor, AdminBrokerProcessor.callConsumer. Unlike it, this does not store
replies, and does not show a consumer the signature of an administrator. `Telling` tells clients
what they did not ask for (upstream: Broker2Client).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, cast

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.administration.groups import Reset
from rmqstore_spark.broker.core.clients import Clients, Peer
from rmqstore_spark.broker.core.messages import Send
from rmqstore_spark.broker.core.transactions import Check
from rmqstore_spark.broker.faces.remoting.headers import Reply
from rmqstore_spark.broker.faces.remoting.reports import reset_list, reset_table
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import FrameError, RemotingError, ServiceError
from rmqstore_spark.layout.constants import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    REPLY_SUFFIX,
)
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME, Fields
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


_SECONDS: Final = 10.0
"""How long a client may take for its answer."""
_MOST: Final = 10_000
"""Most requests that wait for the answer of another client."""
_TO: Final = "REPLY_TO_CLIENT"
_PUSHED: Final = "PUSH_REPLY_TIME"
_OLDEST: Final = 62
"""The first version of a client that tells about itself (V3_1_8_SNAPSHOT)."""
_PASSED_ON: Final = ("consumerGroup", "clientId", "jstackEnable")


class Relaying:
    """Asks one client for another. Use it in the thread of the event loop.

    Args:
        store: the store, for its addresses and clock.
        clients: who is connected.
    """

    def __init__(self, store: StoreWriter, clients: Clients) -> None:
        self._store = store
        self._clients = clients
        self._waiting = 0

    async def reply(self, connection: RemotingConnection, reply: Reply) -> Send:
        """Pass a reply on to the producer that waits for it.

        Raises:
            RemotingError: it is not there, or does not take it.
        """
        header = reply.send
        if not header.topic.endswith(REPLY_SUFFIX):
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a reply goes to a topic with a name like CLUSTER{REPLY_SUFFIX}, not to "
                f"{escaped(header.topic[:MAX_NAME])}",
            )
        client_id = _value(header.properties, _TO)
        if not client_id:
            raise _failed(f"reply message properties[{_TO}] is null")
        shown = escaped(client_id[:MAX_NAME])
        requester = self._clients.requester(client_id)
        if requester is None:
            raise _failed(f"push reply message fail, channel of <{shown}> not found.")
        pushed = self._push(connection, reply)
        try:
            told = await self._asked(connection_of(requester), pushed)
        except ServiceError as error:
            raise _failed(f"push reply message to {shown} fail: {error}") from error
        if told.code != ResponseCode.SUCCESS:
            raise _failed(f"push reply message to {shown} fail: code {told.code}")
        return header

    def _push(self, connection: RemotingConnection, reply: Reply) -> Command:
        """Return the request that gives a reply to the client that waits for it."""
        header = reply.send
        now = str(self._store.clock())
        pushed = f"{_PUSHED}{NAME_VALUE_SEPARATOR}{now}{PROPERTY_SEPARATOR}{header.properties}"
        ext = {
            "bornHost": connection.peer,
            "bornTimestamp": str(header.born),
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.queue_nums),
            "flag": str(header.flag),
            "producerGroup": reply.group,
            "properties": pushed,
            "queueId": str(header.queue_id),
            "reconsumeTimes": str(header.reconsume_times),
            "storeHost": self._store.config.host[0],
            "storeTimestamp": now,
            "sysFlag": str(header.sys_flag),
            "topic": header.topic,
            "unitMode": "false",
        }
        return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, header.body)

    async def running_info(self, request: Command) -> Command:
        """Ask a consumer how it is, for an administrator; return its answer as one to the latter.

        Raises:
            RemotingError: it is not there, or does not answer.
        """
        fields = Fields(request.ext)
        group, client_id = fields.text("consumerGroup"), fields.text("clientId")
        who = f"<{escaped(group[:MAX_NAME])}> <{escaped(client_id[:MAX_NAME])}>"
        found = self._clients.group(group)
        named = [
            (connection, member)
            for connection, member in (found.members.items() if found is not None else ())
            if member.client_id == client_id
        ]
        if not named:
            raise _failed(f"The Consumer {who} not online")
        connection, member = named[0]
        if member.version < _OLDEST:
            raise _failed(f"The Consumer {who} is too old: it cannot tell about itself")
        ext = {name: text for name, text in request.ext.items() if name in _PASSED_ON}
        asked = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        try:
            told = await self._asked(connection_of(connection), asked)
        except ServiceError as error:
            remark = f"consumer {who} Timeout: {error}"
            raise RemotingError(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from error
        return request.answer(told.code, told.remark, told.ext, told.body)

    async def _asked(self, connection: RemotingConnection, command: Command) -> Command:
        """Ask a client.

        Raises:
            ServiceError: it does not answer.
            RemotingError: too many requests wait.
        """
        if self._waiting >= _MOST:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY, f"{_MOST} requests wait for other clients, as many as may"
            )
        self._waiting += 1
        try:
            return await connection.request(command, _SECONDS)
        finally:
            self._waiting -= 1


def _value(properties: str, name: str) -> str:
    """Return the value of a property; "" if there is none."""
    lead = name + NAME_VALUE_SEPARATOR
    for part in properties.split(PROPERTY_SEPARATOR):
        if part.startswith(lead):
            return part[len(lead) :]
    return ""


def _failed(remark: str) -> RemotingError:
    return RemotingError(ResponseCode.SYSTEM_ERROR, remark)
