"""Answers administrators: topics, and who is connected (upstream: AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.clients import Clients, Member
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
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
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_INT, Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["TopicAdministration"]


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
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._update_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats,
        }

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers for the thread of the event loop, by code."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
        }

    # ---- topics

    def _update_topic(self, _: RemotingConnection, request: Command) -> Command:
        self._catalog.require_master()
        fields = Fields(request.ext)
        name = fields.name("topic")
        if not is_writable_topic(name):
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"The topic[{escaped(name)}] is conflict with system topic.",
            )
        settings = {
            "read_queue_nums": fields.long("readQueueNums", 1, MAX_INT),
            "write_queue_nums": fields.long("writeQueueNums", 1, MAX_INT),
            "perm": fields.long("perm", 0, MAX_INT),
        }
        try:
            if name in self._store.topics:
                self._store.update_topic(name, **settings)
            else:
                self._store.create_topic(name, **settings)
        except OptionError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except (RefusedError, StoreWriteError) as error:
            raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        return request.answer()

    def _delete_topic(self, _: RemotingConnection, request: Command) -> Command:
        self._catalog.require_master()
        try:
            self._store.delete_topic(Fields(request.ext).name("topic"))
        except TopicNotFoundError:
            pass  # as for RocketMQ
        except OptionError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except (RefusedError, StoreWriteError) as error:
            raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        return request.answer()

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

    # ---- clients

    def _consumers(self, _: RemotingConnection, request: Command) -> Command:
        name = Fields(request.ext).name("consumerGroup")
        group = self._clients.group(name)
        if group is None:
            raise RemotingError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{escaped(name)}] not online"
            )
        told = group.told
        subscriptions = {
            each.topic: {
                "classFilterMode": False,
                "codeSet": [] if each.codes is None else each.codes.tolist(),
                "expressionType": each.kind,
                "subString": each.expression,
                "subVersion": each.version,
                "tagsSet": [],
                "topic": each.topic,
            }
            for each in told.subscriptions.values()
        }
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
