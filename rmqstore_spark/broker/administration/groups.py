"""Administers consumer groups (upstream: AdminBrokerProcessor, Broker2Client)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.clients import Clients
from rmqstore_spark.broker.statistics import Statistics
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import FrameError, OptionError, RemotingError, StoreWriteError
from rmqstore_spark.layout.constants import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from rmqstore_spark.layout.fastjson import ObjectKey
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.bodies import dump_body, objects_in, parse_request
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_LONG, MAX_NAME, Fields
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["GroupAdministration"]

_log = logging.getLogger(__name__)

_CPP: Final = "CPP"
_END: Final = -1
"""A time that means the end of the queues."""


class GroupAdministration:
    """Administers consumer groups. Its handlers belong to one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        clients: who is connected.
        reader: of its queues.
        statistics: know how much was consumed.
    """

    def __init__(
        self,
        store: StoreWriter,
        catalog: Catalog,
        clients: Clients,
        reader: QueueReader,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._clients = clients
        self._reader = reader
        self._statistics = statistics
        self._loop = asyncio.get_running_loop()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of single requests, by code."""
        return {
            RequestCode.GET_CONSUME_STATS: self._progress,
            RequestCode.GET_BROKER_CONSUME_STATS: self._progress_of_all,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._consumers_of,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._time_span,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
        }

    # ---- settings

    def update(self, _: RemotingConnection, request: Command) -> Command:
        """Create or change the group that a request names; see `ChangeRequests`."""
        self._update([parse_request(request.body)])
        return request.answer()

    def update_all(self, _: RemotingConnection, request: Command) -> Command:
        """Create or change the groups that a request names, as clients of RocketMQ 5 ask for it."""
        self._update(objects_in(request.body, "groupConfigList"))
        return request.answer()

    def _update(self, groups: Iterable[dict[str, Any]]) -> None:
        self._catalog.require_master()
        try:
            for group in groups:
                self._store.groups.update(group)
        except OptionError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except StoreWriteError as error:
            raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error

    def delete(self, connection: RemotingConnection, request: Command) -> Command:
        """Delete the group that a request names, but not its offsets; see `ChangeRequests`."""
        self._catalog.require_master()
        fields = Fields(request.ext)
        name, _ = fields.text("groupName"), fields.flag("removeOffset")  # which is read later
        try:
            self._store.groups.delete(name)
        except StoreWriteError as error:
            raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        _log.info("%s deleted the group %s.", escaped(connection.peer), escaped(name))
        return request.answer()

    def forget_offsets(self, requests: Iterable[Command]) -> None:
        """Remove the offsets of groups, where requests that deleted them say so.

        Raises:
            StoreWriteError: the file could not be written.
        """
        deleted = RequestCode.DELETE_SUBSCRIPTIONGROUP
        fields = [Fields(request.ext) for request in requests if request.code == deleted]
        gone = [each.text("groupName") for each in fields if each.flag("removeOffset")]
        if gone:
            self._store.consumer_offsets.forget_groups(gone)

    # ---- progress

    def _progress(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        group, only = fields.text("consumerGroup"), request.ext.get("topic", "")
        table: dict[ObjectKey, dict[str, int]] = {}
        rate, now = 0.0, time.monotonic()
        for topic in sorted(self._topics_of().get(group, ())):
            queues = self._queues(group, topic) if not only or topic == only else {}
            if queues:
                table |= queues
                rate += self._statistics.consumed(topic, group, now)
        return request.answer(body=dump_body({"consumeTps": rate, "offsetTable": table}))

    def _progress_of_all(self, _: RemotingConnection, request: Command) -> Command:
        consumed = self._topics_of()
        behind, now = 0, time.monotonic()
        told: list[dict[str, Any]] = []
        for group in self._store.groups.names():
            parts = []
            for topic in sorted(consumed.get(group, ())):
                table = self._queues(group, topic)
                rate = self._statistics.consumed(topic, group, now) if table else 0.0
                parts.append({"consumeTps": rate, "offsetTable": table})
                behind += sum(
                    each["brokerOffset"] - each["consumerOffset"] for each in table.values()
                )
            told.append({group: parts})
        body = {
            "brokerAddr": self._store.config.host[0], "consumeStatsList": told, "totalDiff": behind,
        }  # fmt: skip
        return request.answer(body=dump_body(body))

    def _topics_of(self) -> dict[str, set[str]]:
        """Return the topics in which groups have offsets, by group."""
        found: dict[str, set[str]] = {}
        for name in self._store.consumer_offsets.table():
            topic, separator, group = name.rpartition("@")
            if separator:
                found.setdefault(group, set()).add(topic)
        return found

    def _queues(self, group: str, topic: str) -> dict[ObjectKey, dict[str, int]]:
        """Return how far a group is in the queues of a topic, unless it no longer consumes it."""
        config = self._store.topics.get(topic)
        online = self._clients.group(group)
        own = topic in (RETRY_GROUP_TOPIC_PREFIX + group, DLQ_GROUP_TOPIC_PREFIX + group)
        if config is None or (online is not None and not own and not online.subscription(topic)):
            return {}
        found = {}
        for queue_id in range(config.read_queue_nums):
            offset = max(0, self._store.consumer_offsets.get(group, topic, queue_id))
            stored = self._reader.stored_at(topic, queue_id, offset - 1) if offset else 0
            found[self._queue(topic, queue_id)] = {
                "brokerOffset": max(0, self._reader.range(topic, queue_id)[1]),
                "consumerOffset": offset,
                "lastTimestamp": max(0, stored),
            }
        return found

    def _queue(self, topic: str, queue_id: int) -> ObjectKey:
        return ObjectKey(brokerName=self._store.config.broker_name, queueId=queue_id, topic=topic)

    def _consumers_of(self, _: RemotingConnection, request: Command) -> Command:
        topic = Fields(request.ext).text("topic")
        groups = {group for group, topics in self._topics_of().items() if topic in topics}
        groups |= self._clients.consumers_of(topic)
        return request.answer(body=dump_body({"groupList": sorted(groups)}))

    def _time_span(self, _: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        topic, group = fields.text("topic"), fields.text("group")
        config = self._store.topics.get(topic)
        if config is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{escaped(topic[:MAX_NAME])}] not exist"
            )
        broker, now = self._store.config.broker_name, self._store.clock()
        spans = []
        for queue_id in range(config.write_queue_nums):
            least, most = self._reader.range(topic, queue_id)
            offset = max(least, self._store.consumer_offsets.get(group, topic, queue_id))
            first, last, consumed, due = (
                self._reader.stored_at(topic, queue_id, at) if least <= at < most else -1
                for at in (least, most - 1, offset - 1, offset)
            )
            spans.append(
                {
                    "consumeTimeStamp": consumed if offset > least else first,
                    "delayTime": now - due if due >= 0 else 0,
                    "maxTimeStamp": last,
                    "messageQueue": {"brokerName": broker, "queueId": queue_id, "topic": topic},
                    "minTimeStamp": first,
                }
            )
        return request.answer(body=dump_body({"consumeTimeSpanSet": spans}))

    # ---- resetting

    def _reset(self, connection: RemotingConnection, request: Command) -> Command:
        fields = Fields(request.ext)
        topic, group = fields.text("topic"), fields.text("group")
        timestamp = fields.long("timestamp", -MAX_LONG, MAX_LONG)
        config = self._store.topics.get(topic)
        if config is None:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"topic[{escaped(topic[:MAX_NAME])}] not exist"
            )
        offsets: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            held = self._store.consumer_offsets.get(group, topic, queue_id)
            if held < 0:
                raise RemotingError(
                    ResponseCode.SYSTEM_ERROR,
                    f"THe consumer group <{escaped(group[:MAX_NAME])}> not exist: it has no "
                    f"progress in queue {queue_id} of the topic yet",
                )
            if timestamp == _END:
                wanted = self._reader.range(topic, queue_id)[1]
            else:
                wanted = self._reader.offset_near(topic, queue_id, timestamp)
            forced = fields.flag("isForce") or wanted < held
            offsets[queue_id] = max(0, wanted) if forced else held
        online = self._clients.group(group)
        if online is None:
            raise RemotingError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {escaped(group[:MAX_NAME])} "
                f"Topic: {escaped(topic[:MAX_NAME])} Timestamp: {timestamp}",
            )
        # As 4.9.8 sends it, whatever it was asked; without isForce, the C++ client aborts.
        ext = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "false"}
        table = {self._queue(topic, queue_id): offset for queue_id, offset in offsets.items()}
        answer = dump_body({"offsetTable": table})
        name = self._store.config.broker_name
        for_cpp = [
            {"brokerName": name, "offset": offset, "queueId": queue_id, "topic": topic}
            for queue_id, offset in offsets.items()
        ]
        bodies = {_CPP: dump_body({"offsetTable": for_cpp})}
        told = [
            (connection, bodies.get(member.language, answer))
            for connection, member in list(online.members.items())
        ]
        self._loop.call_soon_threadsafe(_tell, told, ext)
        _log.info(
            "%s had the offsets of the group %s in the topic %s reset by its consumers.",
            escaped(connection.peer), escaped(group), escaped(topic),
        )  # fmt: skip
        return request.answer(body=answer)


def _tell(members: list[tuple[RemotingConnection, bytes]], ext: dict[str, str]) -> None:
    """Tell the members of a group where to begin; they report that as their progress."""
    for connection, body in members:
        with suppress(FrameError):  # the topic has too many queues
            connection.one_way(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), body))
