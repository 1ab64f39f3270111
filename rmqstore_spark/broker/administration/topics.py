"""Answers administrators: topics, and who is connected (upstream: AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.clients import Clients, Member
from rmqstore_spark.broker.heartbeat import TAG, Subscription, tags_in
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.topics import MOST_QUEUES, require_clients_topic
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RemotingError,
    StoreWriteError,
    TopicNotFoundError,
)
from rmqstore_spark.layout.constants import is_writable_topic
from rmqstore_spark.layout.fastjson import ObjectKey
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.bodies import dump_body, objects_in
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_INT, MAX_LONG, MAX_NAME, Fields
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["TopicAdministration", "subscription_data"]

_log = logging.getLogger(__name__)

_MOST_ENTRIES: Final = 10_000
"""Most entries of a queue in an answer."""


class TopicAdministration:
    """Answers administrators. The handlers for files belong to one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        clients: who is connected.
        reader: of its records.
    """

    def __init__(
        self, store: StoreWriter, catalog: Catalog, clients: Clients, reader: QueueReader
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._clients = clients
        self._reader = reader

    def file_handlers(self) -> dict[int, Handler]:
        """Return the handlers that read and write files, by code."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats,
            RequestCode.QUERY_CONSUME_QUEUE: self._queue,
        }

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers for the thread of the event loop, by code."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
        }

    # ---- topics

    def update(self, connection: RemotingConnection, request: Command) -> Command:
        """Create or change the topic that a request names; see `ChangeRequests`."""
        self._update(connection, Fields(request.ext), "topic")
        return request.answer()

    def update_all(self, connection: RemotingConnection, request: Command) -> Command:
        """Create or change the topics that a request names, as clients of RocketMQ 5 ask for it."""
        for given in objects_in(request.body, "topicConfigList"):
            texts = {key: str(value) for key, value in given.items()}
            self._update(connection, Fields(texts), "topicName")
        return request.answer()

    def _update(self, connection: RemotingConnection, fields: Fields, named: str) -> None:
        self._catalog.require_master()
        name = fields.name(named)
        if not is_writable_topic(name):
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"The topic[{escaped(name)}] is conflict with system topic.",
            )
        settings = {
            "read_queue_nums": fields.long("readQueueNums", 1, MOST_QUEUES),
            "write_queue_nums": fields.long("writeQueueNums", 1, MOST_QUEUES),
            "perm": fields.long("perm", 0, MAX_INT),
        }
        order = fields.flag("order")
        try:
            if name in self._store.topics:
                self._store.update_topic(name, order=order, **settings)
            else:
                self._store.create_topic(name, order=order, **settings)
        except OptionError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except (RefusedError, StoreWriteError) as error:
            raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        _log.info(
            "%s set the topic %s: readQueueNums=%d, writeQueueNums=%d, perm=%d, order=%s.",
            escaped(connection.peer), name, *settings.values(), str(order).lower(),
        )  # fmt: skip

    def deleted_name(self, request: Command) -> str:
        """Return the topic that a request deletes.

        Raises:
            RemotingError: it may not be deleted.
            FrameError: the request names none.
        """
        self._catalog.require_master()
        name = Fields(request.ext).name("topic")
        try:
            require_clients_topic(name)
        except OptionError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return name

    def delete(self, named: Mapping[str, Sequence[Request]]) -> None:
        """Delete topics together. Those that do not exist are left out, as RocketMQ does it.

        Args:
            named: the requests for each, by its name.

        Raises:
            RemotingError: they could not be deleted; nothing has changed.
        """
        there = [name for name in named if name in self._store.topics]
        try:
            if there:
                self._store.delete_topics(there)
        except TopicNotFoundError:  # another thread deleted one of them
            for name in there:
                with suppress(TopicNotFoundError):
                    self._store.delete_topic(name)
        except (RefusedError, StoreWriteError) as error:
            raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        for name in there:
            peer = named[name][0].connection.peer
            _log.info("%s deleted the topic %s.", escaped(peer), name)

    def _topic_stats(self, _: RemotingConnection, request: Command) -> Command:
        name = Fields(request.ext).name("topic")
        topic = self._store.topics.get(name)
        if topic is None:
            raise RemotingError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{escaped(name)}] not exist")
        broker = self._store.config.broker_name
        table = {}
        for queue_id in range(topic.write_queue_nums):
            least, most = self._reader.range(name, queue_id)
            last = self._reader.stored_at(name, queue_id, most - 1) if most > least else 0
            key = ObjectKey(brokerName=broker, queueId=queue_id, topic=name)
            table[key] = {
                "lastUpdateTimestamp": max(last, 0), "maxOffset": most, "minOffset": least,
            }  # fmt: skip
        return request.answer(body=dump_body({"offsetTable": table}))

    def _queue(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        name, queue_id = fields.name("topic"), fields.long("queueId", 0, MAX_INT)
        index, count = fields.long("index", 0, MAX_LONG), fields.long("count", 0, MAX_INT)
        topic = self._store.topics.get(name)
        if topic is None or queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"{queue_id}@{escaped(name)} is not exist!"
            )
        least, most = self._reader.range(name, queue_id)
        body: dict[str, Any] = {"maxQueueIndex": most, "minQueueIndex": least}
        body |= self._subscribed(request.ext.get("consumerGroup"), name)
        remark = None
        if least <= index < most:
            entries = self._reader.entries(name, queue_id, index, min(count, _MOST_ENTRIES))
            rows = zip(
                *(entries[field].tolist() for field in ("physicalOffset", "size", "tagsCode")),
                strict=True,
            )
            body["queueData"] = [
                {"eval": False, "physicOffset": place, "physicSize": size, "tagsCode": code}
                for place, size, code in rows
            ]
        else:
            remark = f"Index {index} of {queue_id}@{escaped(name)} is not exist!"
        return request.answer(remark=remark, body=dump_body(body))

    def _subscribed(self, group: str | None, topic: str) -> dict[str, Any]:
        """Return what a group consumes of a topic, for those who look at a queue."""
        if not group:
            return {}
        online = self._clients.group(group)
        found = None if online is None else online.subscription(topic)
        if found is None:
            told = f"{escaped(group[:MAX_NAME])}@{escaped(topic)} is not online!"
            return {"filterData": told}
        return {"filterData": "null", "subscriptionData": subscription_data(found)}

    # ---- clients

    def _consumers(self, _: RemotingConnection, request: Command) -> Command:
        name = Fields(request.ext).name("consumerGroup")
        group = self._clients.group(name)
        if group is None:
            raise RemotingError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{escaped(name)}] not online"
            )
        told = group.told
        subscriptions = {one.topic: subscription_data(one) for one in told.subscriptions.values()}
        body = {
            "connectionSet": _connections(group.members.items()),
            "consumeFromWhere": told.from_where,
            "consumeType": told.kind,
            "messageModel": told.model,
            "subscriptionTable": subscriptions,
        }
        return request.answer(body=dump_body(body))

    def _producers(self, _: RemotingConnection, request: Command) -> Command:
        name = Fields(request.ext).name("producerGroup")
        members = self._clients.producers(name)
        if not members:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{escaped(name)}] not exist"
            )
        return request.answer(body=dump_body({"connectionSet": _connections(members)}))


def subscription_data(told: Subscription) -> dict[str, Any]:
    """Return a subscription as a broker tells it (SubscriptionData)."""
    return {
        "classFilterMode": False,
        "codeSet": [] if told.codes is None else told.codes.tolist(),
        "expressionType": told.kind,
        "subString": told.expression,
        "subVersion": told.version,
        "tagsSet": tags_in(told.expression) if told.kind == TAG else [],
        "topic": told.topic,
    }


def _connections(members: Iterable[tuple[RemotingConnection, Member]]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": connection.peer,
            "clientId": member.client_id,
            "language": member.language,
            "version": member.version,
        }
        for connection, member in members
    ]
