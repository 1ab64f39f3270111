"""Makes answers of what a broker has decided for administrators.

Upstream: the classes of org.apache.rocketmq.common.admin and common.protocol.body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.administration.groups import ConsumeStats, QueueSpan, Reset
from rmqstore_spark.broker.core.administration.messages import FoundMessages
from rmqstore_spark.broker.core.administration.topics import Entries, EntriesAsked, StoredQueue
from rmqstore_spark.broker.core.consumers.offsets import NamedQueue
from rmqstore_spark.broker.core.refusal import shown
from rmqstore_spark.broker.core.statistics import Sum
from rmqstore_spark.broker.core.subscriptions import Subscription
from rmqstore_spark.broker.faces.remoting.results import in_json, subscription_data
from rmqstore_spark.layout.fastjson import ObjectKey
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import VERSION, Command

_R = TypeVar("_R")

At: TypeAlias = tuple[str, _R]
"""A result, with the name or the address of the broker, which the answer repeats."""

_VERSION_NAME: Final = "V4_9_8"
"""The version of RocketMQ whose behaviour this broker has."""


def topic_config(request: Command, found: Mapping[str, Any]) -> Command:
    """Tell the settings of a topic."""
    return in_json(request, {"attributes": {}, **found})


def ranges(request: Command, found: At[Iterable[StoredQueue]]) -> Command:
    """Tell where queues begin and end (TopicStatsTable)."""
    broker_name, queues = found
    table = {
        _key(broker_name, each.queue): {
            "lastUpdateTimestamp": each.last_stored,
            "maxOffset": each.most,
            "minOffset": each.least,
        }
        for each in queues
    }
    return in_json(request, {"offsetTable": table})


def entries(request: Command, found: tuple[EntriesAsked, Entries]) -> Command:
    """Tell entries of a queue (QueryConsumeQueueResponseBody)."""
    asked, told = found
    name, queue_id = asked.queue
    body: dict[str, Any] = {"maxQueueIndex": told.most, "minQueueIndex": told.least}
    if asked.group and told.subscription is None:
        body["filterData"] = f"{shown(asked.group)}@{escaped(name)} is not online!"
    elif told.subscription is not None:
        body["filterData"] = "null"
        body["subscriptionData"] = subscription_data(told.subscription)
    if told.entries is None:
        remark = f"Index {asked.first} of {queue_id}@{escaped(name)} is not exist!"
        return request.answer(remark=remark, body=dump_body(body))
    body["queueData"] = [
        {"eval": False, "physicOffset": place, "physicSize": size, "tagsCode": code}
        for place, size, code in told.entries
    ]
    return in_json(request, body)


def subscription(request: Command, found: tuple[str, str, Subscription | None]) -> Command:
    """Tell what a group consumes of a topic."""
    group, topic, told = found
    body: dict[str, Any] = {"group": group, "topic": topic}
    if told is not None:
        body["subscriptionData"] = subscription_data(told)
    return in_json(request, body)


def topics_of(request: Command, found: At[Sequence[str]]) -> Command:
    """Tell the topics of a group."""
    address, topics = found
    return in_json(request, {"brokerAddr": address, "topicList": topics})


def progress(request: Command, found: At[ConsumeStats]) -> Command:
    """Tell how far a group is (ConsumeStats)."""
    return in_json(request, _progress(*found))


def all_progress(
    request: Command, found: tuple[str, str, Sequence[tuple[str, Sequence[ConsumeStats]]]]
) -> Command:
    """Tell how far all groups are (ConsumeStatsList)."""
    broker_name, address, groups = found
    behind = sum(
        queue.end - queue.offset
        for _, parts in groups for part in parts for queue in part.queues
    )  # fmt: skip
    told = [{group: [_progress(broker_name, part) for part in parts]} for group, parts in groups]
    return in_json(request, {"brokerAddr": address, "consumeStatsList": told, "totalDiff": behind})


def _progress(broker_name: str, told: ConsumeStats) -> dict[str, Any]:
    table = {
        _key(broker_name, each.queue): {
            "brokerOffset": each.end,
            "consumerOffset": each.offset,
            "lastTimestamp": each.stored,
        }
        for each in told.queues
    }
    return {"consumeTps": told.rate, "offsetTable": table}


def spans(request: Command, found: At[Iterable[QueueSpan]]) -> Command:
    """Tell of which times a group has messages left (QueryConsumeTimeSpanBody)."""
    broker_name, queues = found
    told = [
        {
            "consumeTimeStamp": each.consumed,
            "delayTime": each.delay,
            "maxTimeStamp": each.last,
            "messageQueue": {
                "brokerName": broker_name,
                "queueId": each.queue.queue_id,
                "topic": each.queue.topic,
            },
            "minTimeStamp": each.first,
        }
        for each in queues
    ]
    return in_json(request, {"consumeTimeSpanSet": told})


def reset(request: Command, found: At[Reset]) -> Command:
    """Tell an administrator where a group begins, as its members are told."""
    return request.answer(body=reset_table(*found))


def reset_table(broker_name: str, told: Reset) -> bytes:
    """Return where a group begins, as Java's clients read it (ResetOffsetBody)."""
    topic = told.asked.topic
    table = {
        _key(broker_name, NamedQueue(topic, number)): at for number, at in told.offsets.items()
    }
    return dump_body({"offsetTable": table})


def reset_list(broker_name: str, told: Reset) -> bytes:
    """Return where a group begins, as C++'s clients read it (ResetOffsetBodyForC)."""
    table = [
        {"brokerName": broker_name, "offset": at, "queueId": number, "topic": told.asked.topic}
        for number, at in told.offsets.items()
    ]
    return dump_body({"offsetTable": table})


def figures(request: Command, found: Mapping[str, object]) -> Command:
    """Tell figures of the broker (KVTable)."""
    told = {"brokerVersion": VERSION, "brokerVersionDesc": _VERSION_NAME, **found}
    return in_json(request, {"table": {name: str(value) for name, value in told.items()}})


def sums(request: Command, found: tuple[Sum, Sum, Sum]) -> Command:
    """Tell what was counted (BrokerStatsData)."""
    times = ("statsMinute", "statsHour", "statsDay")
    return in_json(request, {each: told._asdict() for each, told in zip(times, found, strict=True)})


def config(request: Command, found: tuple[Mapping[str, int], str]) -> Command:
    """Tell the configuration."""
    version, text = found
    return request.answer(ext={"version": dump_body(version).decode()}, body=text.encode())


def messages(request: Command, found: FoundMessages) -> Command:
    """Give the messages that a query found."""
    ext = {
        "indexLastUpdateTimestamp": str(found.time),
        "indexLastUpdatePhyoffset": str(found.place),
    }
    if found.records:
        return request.answer(ext=ext, body=found.records)
    return request.answer(ResponseCode.QUERY_NOT_FOUND, found.remark, ext)


def _key(broker_name: str, queue: NamedQueue) -> ObjectKey:
    return ObjectKey(brokerName=broker_name, queueId=queue.queue_id, topic=queue.topic)
