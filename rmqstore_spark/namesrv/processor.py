"""The name server as a service: requests to tables, and tables to answers.

Upstream: DefaultRequestProcessor. Unlike it, this answers requests with unknown codes, and names
the field that is missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.namesrv.administration import ORDER_TOPICS, Administration, KvConfig
from rmqstore_spark.namesrv.registration import (
    BrokerId,
    read_broker,
    read_data_version,
    read_registration,
)
from rmqstore_spark.namesrv.tables import RouteTables
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME, Fields
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.dispatch import Dispatch
from rmqstore_spark.remoting.peerlog import PeerLog

_DIGEST_SIZE: Final = 16
_SLICE_SECONDS: Final = 0.01
"""How long brokers that have gone are removed without looking at what others ask."""
_MOST_LINES: Final = 20
"""Lines about the brokers of one host that are logged in a minute, of each kind."""


class NameServer:
    """Answers brokers, clients and administrators.

    Args:
        tables: what brokers registered.
        kv: the key-value configuration.
        administration: handles the requests of administrators, and has the configuration.
    """

    def __init__(self, tables: RouteTables, kv: KvConfig, administration: Administration) -> None:
        self._tables = tables
        self._kv = kv
        self._administration = administration
        self._log = PeerLog(logging.getLogger(__name__), _MOST_LINES)
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._gone: deque[RemotingConnection] = deque()
        self._is_closing = False
        lists = {
            RequestCode.GET_BROKER_CLUSTER_INFO: tables.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: tables.all_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: tables.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: tables.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: tables.unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: tables.unit_sub_of_no_unit_topics,
        }
        self._lists = {int(code): make for code, make in lists.items()}
        self._dispatch = Dispatch(
            {
                **administration.handlers(),
                **dict.fromkeys(self._lists, self._list),
                RequestCode.REGISTER_BROKER: self._register,
                RequestCode.UNREGISTER_BROKER: self._unregister,
                RequestCode.QUERY_DATA_VERSION: self._query_version,
                RequestCode.BROKER_HEARTBEAT: self._heartbeat,
                RequestCode.GET_BROKER_MEMBER_GROUP: self._members,
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
                RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._set_write,
                RequestCode.ADD_WRITE_PERM_OF_BROKER: self._set_write,
                RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            }
        )

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        self._dispatch.handle(requests)

    def closed(self, connection: RemotingConnection) -> None:
        if self._is_closing:
            return
        if not self._gone:
            self._loop.call_soon(self._remove_gone)
        self._gone.append(connection)

    async def expire(self) -> None:
        """Remove silent brokers, from time to time, until this is cancelled."""
        while True:
            await asyncio.sleep(self._administration.config.scan_not_active_broker_interval / 1000)
            silent = self._administration.config.broker_channel_expired_time / 1000
            until = self._clock() + _SLICE_SECONDS
            for live in self._tables.expire(self._clock() - silent):
                if self._clock() > until:
                    await asyncio.sleep(0)
                    until = self._clock() + _SLICE_SECONDS
                if isinstance(live.connection, RemotingConnection):
                    self._say(
                        logging.WARNING, live.connection,
                        "Broker %s at %s was removed: it has not registered again.", live.broker,
                    )  # fmt: skip
                    live.connection.close()

    def _remove_gone(self) -> None:
        """Remove the brokers of connections that have closed: a few, and then others are served."""
        until = self._clock() + _SLICE_SECONDS
        while self._gone and self._clock() < until:
            connection = self._gone.popleft()
            for live in self._tables.lost(connection):
                self._say(
                    logging.WARNING, connection,
                    "Broker %s at %s was removed: its connection closed.", live.broker,
                )  # fmt: skip
        if self._gone:
            self._loop.call_soon(self._remove_gone)

    async def drain(self) -> None:
        """Wait for the requests that are being handled. Then all connections may be closed."""
        self._is_closing = True
        await self._dispatch.drain()

    # ---- brokers

    def _register(self, connection: RemotingConnection, request: Command) -> Command:
        broker = read_broker(request)
        digest = _digest(request)
        ha_address = request.ext.get("haServerAddr", "")[:MAX_NAME]
        now = self._clock()
        # Brokers register every 30 s, mostly with the same topics, of which there may be thousands.
        if self._tables.repeats(broker, digest):
            master = self._tables.hear(broker, now, connection, ha_address)
        else:
            told = read_registration(request)
            if told.left_out:
                self._say(
                    logging.WARNING, connection,
                    "Of broker %s at %s, %d topics are left out. The first: %s.", broker,
                    told.left_out, escaped(told.left_out_for),
                )  # fmt: skip
            is_new = self._tables.version(broker.address) is None
            master = self._tables.register(told, now, connection, digest)
            if is_new:
                self._say(logging.INFO, connection, "Broker %s registered: %s.", broker)
        ext = {}
        if master.address:
            ext = {"haServerAddr": master.ha_address, "masterAddr": master.address}
        order = self._kv.namespace(ORDER_TOPICS) or {}
        return request.answer(ext=ext, body=dump_body({"table": order}))

    def _unregister(self, connection: RemotingConnection, request: Command) -> Command:
        broker = read_broker(request)
        if self._tables.unregister(broker):
            self._say(logging.INFO, connection, "Broker %s unregistered: %s.", broker)
        return request.answer()

    def _query_version(self, _: RemotingConnection, request: Command) -> Command:
        broker = read_broker(request)
        is_changed = self._tables.is_changed(broker.address, read_data_version(request.body))
        if not is_changed:
            self._tables.touch(broker.address, self._clock())
        known = self._tables.version(broker.address)
        return request.answer(
            ext={"changed": "true" if is_changed else "false"},
            body=b"" if known is None else dump_body(known._asdict()),
        )

    def _heartbeat(self, _: RemotingConnection, request: Command) -> Command:
        """Take note of a sign of life, which brokers of RocketMQ 5 may send each second."""
        self._tables.touch(Fields(request.ext).name("brokerAddr"), self._clock())
        return request.answer()

    def _members(self, _: RemotingConnection, request: Command) -> Command:
        """Tell a broker of RocketMQ 5 its master and slaves."""
        fields = Fields(request.ext)
        cluster, name = fields.name("clusterName"), fields.name("brokerName")
        return request.answer(body=self._tables.members(cluster, name))

    def _say(
        self, level: int, connection: RemotingConnection, text: str, broker: BrokerId, *more: object
    ) -> None:
        """Log a line about a broker that registered on a connection."""
        self._log.log(
            level, connection.peer, text, escaped(broker.name), escaped(broker.address), *more
        )

    # ---- clients

    def _route(self, _: RemotingConnection, request: Command) -> Command:
        topic = request.ext.get("topic", "null")
        body = self._tables.route(topic)
        if body is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic[:MAX_NAME]}\n"
                "No broker with this topic is registered. Create the topic, or start its broker.",
            )
        if self._administration.config.order_message_enable:
            order = self._kv.get(ORDER_TOPICS, topic)
            if order is not None:
                body = dump_body({"orderTopicConf": order})[:-1] + b"," + body[1:]
        return request.answer(body=body)

    def _list(self, _: RemotingConnection, request: Command) -> Command:
        return request.answer(body=self._lists[request.code]())

    def _topics_of_cluster(self, _: RemotingConnection, request: Command) -> Command:
        cluster = Fields(request.ext).name("cluster")
        return request.answer(body=self._tables.topics_of_cluster(cluster))

    # ---- administrators

    def _set_write(self, connection: RemotingConnection, request: Command) -> Command:
        name = Fields(request.ext).name("brokerName")
        may_write = request.code == RequestCode.ADD_WRITE_PERM_OF_BROKER
        count = self._tables.set_write_permission(name, may_write=may_write)
        self._log.info(
            connection.peer, "%s said that %d topics of the broker %s may %s.",
            escaped(connection.peer), count, escaped(name),
            "be sent to again" if may_write else "not be sent to any more",
        )  # fmt: skip
        return request.answer(ext={"addTopicCount" if may_write else "wipeTopicCount": str(count)})

    def _delete_topic(self, _: RemotingConnection, request: Command) -> Command:
        topic = Fields(request.ext).name("topic")
        self._tables.delete_topic(topic, request.ext.get("clusterName", ""))
        return request.answer()


def _digest(request: Command) -> bytes:
    """Return a digest of all that says what a registration's body means."""
    how = (request.version, request.ext.get("compressed"), request.ext.get("bodyCrc32"))
    digest = hashlib.blake2b(request.body, digest_size=_DIGEST_SIZE)
    digest.update(repr(how).encode("utf-8", "replace"))
    return digest.digest()
