"""Tells single topics and groups, the system's topics, and who is connected to send.

mqadmin asks for them to export a cluster's metadata, and clients of RocketMQ 5 for a topic or group
of their own. (Upstream: AdminBrokerProcessor of 4.9.8 and 5.3.3.)
"""

from __future__ import annotations

import asyncio
from typing import Any

from rmqstore_spark.broker.administration.topics import subscription_data
from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.clients import Clients
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.layout.constants import SYSTEM_TOPICS, is_system_topic, is_topic_of_group
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME, Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["Inventory"]


class Inventory:
    """Answers administrators and clients.

    Args:
        store: the store.
        catalog: its topics and groups.
        clients: who is connected.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, clients: Clients) -> None:
        self._store = store
        self._catalog = catalog
        self._clients = clients

    def file_handlers(self) -> dict[int, Handler]:
        """Return the handlers for a thread that may take its time, by code."""
        return {
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.GET_TOPIC_CONFIG: self._topic,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
        }

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers for the thread of the event loop, by code."""
        return {RequestCode.GET_ALL_PRODUCER_INFO: self._producers}

    def _system_topics(self, _: RemotingConnection, request: Command) -> Command:
        """Answer with what mqadmin leaves out of an export of topics."""
        config = self._store.config
        own = (
            name for name in self._catalog.topics()
            if is_system_topic(name) and not is_topic_of_group(name)
        )  # fmt: skip
        names = {*SYSTEM_TOPICS, config.broker_cluster_name, config.broker_name, *own}
        return request.answer(body=dump_body({"topicList": sorted(names)}))

    def _topic(self, _: RemotingConnection, request: Command) -> Command:
        name = Fields(request.ext).text("topic")
        found = self._catalog.topics().get(name)
        if found is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic in this broker. topic: {escaped(name[:MAX_NAME])}",
            )
        return request.answer(body=dump_body({"attributes": {}, **found}))

    def _group(self, _: RemotingConnection, request: Command) -> Command:
        name = Fields(request.ext).text("group")
        self._catalog.group(name)  # which creates it if that is allowed, as a broker does
        found = self._store.groups.to_json()["subscriptionGroupTable"].get(name)
        if found is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker"
            )
        return request.answer(body=dump_body(found))

    def _topics_of_group(self, _: RemotingConnection, request: Command) -> Command:
        group = Fields(request.ext).text("group")
        parts = (name.rpartition("@") for name in self._store.consumer_offsets.table())
        topics = sorted(topic for topic, mark, of in parts if mark and of == group)
        body = {"brokerAddr": self._store.config.host[0], "topicList": topics}
        return request.answer(body=dump_body(body))

    def _subscription(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        group, topic = fields.text("group"), fields.text("topic")
        online = self._clients.group(group)
        found = None if online is None else online.subscription(topic)
        body: dict[str, Any] = {"group": group, "topic": topic}
        if found is not None:
            body["subscriptionData"] = subscription_data(found)
        return request.answer(body=dump_body(body))

    def _producers(self, _: RemotingConnection, request: Command) -> Command:
        groups = self._clients.producer_groups(asyncio.get_running_loop().time())
        now = self._store.clock()
        body = {
            name: [
                {
                    "clientId": member.client_id,
                    "language": member.language,
                    "lastUpdateTimestamp": now - round(seconds * 1000),
                    "remoteIP": f"/{connection.peer}",
                    "version": member.version,
                }
                for connection, member, seconds in members
            ]
            for name, members in groups.items()
        }
        return request.answer(body=dump_body({"data": body}))
