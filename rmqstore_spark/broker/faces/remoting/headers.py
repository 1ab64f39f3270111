"""Reads requests: their headers, and small bodies, to plain values.

Upstream: the classes of org.apache.rocketmq.common.protocol.header, LockBatchRequestBody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.broker.core.administration.groups import Deletion, GroupTopic, ResetAsked
from rmqstore_spark.broker.core.administration.messages import KeyQuery
from rmqstore_spark.broker.core.administration.state import SumsAsked
from rmqstore_spark.broker.core.administration.topics import EntriesAsked, WantedTopic
from rmqstore_spark.broker.core.consumers.locks import LockedQueue, QueueLocks
from rmqstore_spark.broker.core.consumers.offsets import GroupQueue, NamedQueue, Report
from rmqstore_spark.broker.core.consumers.pulls import Pull
from rmqstore_spark.broker.core.consumers.send_back import Returned
from rmqstore_spark.broker.core.messages import Send, is_delayed, is_transactional
from rmqstore_spark.broker.core.subscriptions import TAG
from rmqstore_spark.broker.core.transactions import End
from rmqstore_spark.engine.tables.queue_ends import QUEUE_ENDS
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    NAME_VALUE_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_TRAN_MSG,
    SCHEDULE_TOPIC,
    STOREHOST_V6_FLAG,
    TRANS_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    is_safe_group_name,
)
from rmqstore_spark.remoting.codec.bodies import objects_in, parse_request
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_INT, MAX_LONG, MAX_NAME, Fields, Number
from rmqstore_spark.remoting.codec.plain import PlainSend

_INT: Final = 1 << 31
_LONG: Final = 1 << 63
_HOST_BITS: Final = BORNHOST_V6_FLAG | STOREHOST_V6_FLAG
_RECONSUMES_SINCE: Final = 121
"""The version (3.4.9) from which on `maxReconsumeTimes` counts."""
_NOT_GIVEN: Final = -1
_DELAY: Final = f"{PROPERTY_DELAY}{NAME_VALUE_SEPARATOR}".encode()
_WAITS: Final = (PROPERTY_DELAY.encode(), PROPERTY_TRAN_MSG.encode())

# ---- producers


def _send_names(given: str) -> tuple[str, str, str, tuple[Number, ...]]:
    """Return the names of the fields of a request to send: those of texts, and those of numbers."""
    topic, default_topic, queue_nums, queue_id, sys_flag, born, flag, properties, times, most = (
        given.split()
    )
    numbers = (
        Number(most, -_INT, _INT - 1, _NOT_GIVEN),
        Number(queue_id, -_INT, _INT - 1),
        Number(queue_nums, -_INT, _INT - 1, 0),
        Number(sys_flag, -_INT, _INT - 1),
        Number(born, -_LONG, _LONG - 1),
        Number(flag, -_INT, _INT - 1),
        Number(times, 0, _INT - 1, 0),
    )
    return topic, default_topic, properties, numbers


def _send(names: tuple[str, str, str, tuple[Number, ...]], request: Command) -> Send:
    topic, default_topic, properties, numbers = names
    ext = request.ext
    if not ext.get(topic, "").strip():
        raise RemotingError(ResponseCode.SYSTEM_ERROR, "The specified topic is blank.")
    most_times, queue_id, queue_nums, sys_flag, born, flag, times = Fields(ext).longs(numbers)
    return Send(
        ext[topic],
        queue_id,
        ext.get(default_topic, ""),
        queue_nums,
        sys_flag & ~_HOST_BITS,
        born,
        flag,
        ext.get(properties, ""),
        times,
        most_times if request.version >= _RECONSUMES_SINCE else _NOT_GIVEN,
        request.body,
    )


long_send: Final[Callable[[Command], Send]] = partial(
    _send,
    _send_names(
        "topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
        "reconsumeTimes maxReconsumeTimes"
    ),
)
"""Reads a request to send whose fields have long names. Raises RemotingError if there is no topic,
or a field is missing or no number."""
short_send: Final[Callable[[Command], Send]] = partial(_send, _send_names("b c d e f g h i j l"))
"""Reads a request to send whose fields have short names; see `long_send`."""


def named_topic(request: Command) -> str:
    """Return the topic that a request to send names; empty if it names none."""
    if isinstance(request, PlainSend):
        return request.topic
    return request.ext.get("topic" if request.code == RequestCode.SEND_MESSAGE else "b", "")


def storing_topic(request: Command) -> str:
    """Return the topic that holds the messages of a request to send at first.

    Of a batch with a delay it is taken to be that of delayed messages, though not all of the batch
    need have it: RocketMQ's clients make none.
    """
    if isinstance(request, PlainSend) and not any(name in request.frame for name in _WAITS):
        return request.topic
    properties = request.ext.get("properties" if request.code == RequestCode.SEND_MESSAGE else "i")
    if properties and is_transactional(properties):
        return TRANS_HALF_TOPIC
    is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE
    if (properties and is_delayed(properties)) or (is_batch and _DELAY in request.body):
        return SCHEDULE_TOPIC
    return named_topic(request)


class Reply(NamedTuple):
    """A reply to the question of a producer, and the producer group of who has it."""

    group: str
    send: Send


def asks_for_queue_ends(request: Command) -> bool:
    """Read whether a member of a group wants to know where all queues end."""
    return request.ext.get(QUEUE_ENDS) == "true"


def long_reply(request: Command) -> Reply:
    """Read a reply whose fields have long names; see `long_send`."""
    return Reply(request.ext.get("producerGroup", ""), long_send(request))


def short_reply(request: Command) -> Reply:
    """Read a reply whose fields have short names; see `long_send`."""
    return Reply(request.ext.get("a", ""), short_send(request))


def end(request: Command) -> End:
    """Read a request to end a transaction (EndTransactionRequestHeader).

    Raises:
        RemotingError: a field is missing or wrong, as of all functions here.
    """
    fields = Fields(request.ext)
    group = fields.name("producerGroup")
    half = HalfId(
        fields.long("tranStateTableOffset", 0, MAX_LONG),
        fields.long("commitLogOffset", 0, MAX_LONG),
    )
    return End(group, half, _OUTCOMES.get(fields.long("commitOrRollback", -MAX_INT, MAX_INT)))


_OUTCOMES: Final = {TRANSACTION_COMMIT_TYPE: True, TRANSACTION_ROLLBACK_TYPE: False}

# ---- consumers

_COMMITS: Final = 1
_SUSPENDS: Final = 2
_HAS_SUBSCRIPTION: Final = 4
_MOST_HOLD_MS: Final = 60_000
_PULL_NUMBERS: Final = (
    Number("queueId", -MAX_INT, MAX_INT),
    Number("sysFlag", -MAX_INT, MAX_INT),
    Number("suspendTimeoutMillis", -MAX_LONG, MAX_LONG, 0),
    Number("queueOffset", -MAX_LONG, MAX_LONG),
    Number("maxMsgNums", -MAX_INT, MAX_INT),
)
_MOST_LOCKED: Final = 16_384


def named_group(request: Command) -> str:
    """Return the name of the group for which messages are asked; empty if there is none."""
    return request.ext.get("consumerGroup", "")


def pull(request: Command) -> Pull:
    """Read a request for messages (PullMessageRequestHeader)."""
    ext, fields = request.ext, Fields(request.ext)
    group, topic = fields.text("consumerGroup"), fields.text("topic")
    queue_id, flags, hold, offset, most = fields.longs(_PULL_NUMBERS)
    has_expression = bool(flags & _HAS_SUBSCRIPTION)
    version = 0 if has_expression else fields.long("subVersion", -MAX_LONG, MAX_LONG, 0)
    return Pull(
        group,
        topic,
        queue_id,
        offset,
        most,
        min(max(hold, 0), _MOST_HOLD_MS) / 1000 if flags & _SUSPENDS else 0,
        fields.long("commitOffset", -MAX_LONG, MAX_LONG, -1) if flags & _COMMITS else -1,
        has_expression,
        ext.get("expressionType") or TAG,
        ext.get("subscription", ""),
        version,
    )


def queue(request: Command) -> NamedQueue:
    """Read the queue that a request is about."""
    fields = Fields(request.ext)
    return NamedQueue(fields.text("topic"), fields.long("queueId", -MAX_INT, MAX_INT))


def group_queue(request: Command) -> GroupQueue:
    """Read the queue, and the group, that a request is about."""
    return GroupQueue(text("consumerGroup")(request), queue(request))


def report(request: Command) -> Report:
    """Read a report of an offset."""
    fields = Fields(request.ext)
    return Report(*group_queue(request), fields.long("commitOffset", -MAX_LONG, MAX_LONG))


def queue_and_time(request: Command) -> tuple[NamedQueue, int]:
    """Read a request for the offset of a time."""
    timestamp = Fields(request.ext).long("timestamp", -MAX_LONG, MAX_LONG)
    return queue(request), timestamp


def returned(request: Command) -> Returned:
    """Read a request to take a message back (ConsumerSendMsgBackRequestHeader)."""
    fields = Fields(request.ext)
    place, group = fields.long("offset", -MAX_LONG, MAX_LONG), fields.text("group")
    level, most = fields.long("delayLevel", -MAX_INT, MAX_INT), None
    if request.version >= _RECONSUMES_SINCE and "maxReconsumeTimes" in request.ext:
        most = fields.long("maxReconsumeTimes", -MAX_INT, MAX_INT)
    return Returned(group, place, level, most)


def locks(request: Command) -> QueueLocks:
    """Read a request to lock or unlock queues.

    Raises:
        FrameError: its body is wrong.
    """
    told = parse_request(request.body)
    group, client_id = told.get("consumerGroup"), told.get("clientId")
    if not isinstance(group, str) or not is_safe_group_name(group):
        raise FrameError("consumerGroup is not a valid name")
    if not isinstance(client_id, str) or not 0 < len(client_id) <= MAX_NAME:
        raise FrameError(f"clientId must be 1 to {MAX_NAME} characters")
    given = told.get("mqSet") or []
    if not isinstance(given, list) or len(given) > _MOST_LOCKED:
        raise FrameError(f"mqSet must be a list of at most {_MOST_LOCKED} queues")
    return QueueLocks(group, client_id, tuple(dict.fromkeys(_queues(given))))


def _queues(given: list[Any]) -> Iterator[LockedQueue]:
    for told in given:
        if not isinstance(told, dict):
            raise FrameError("mqSet holds more than objects")
        broker_name, name, number = (
            told.get("brokerName"), told.get("topic"), told.get("queueId"),
        )  # fmt: skip
        if isinstance(number, str) and number.isascii() and number.isdigit():
            number = int(number[:10])
        if isinstance(broker_name, str) and isinstance(name, str) and type(number) is int:
            yield LockedQueue(broker_name, name, number)


# ---- clients


def left_groups(request: Command) -> tuple[str, str]:
    """Read which producer group and which consumer group a client leaves; "" for none."""
    return request.ext.get("producerGroup") or "", request.ext.get("consumerGroup") or ""


def kind_of_subscription(request: Command) -> str:
    """Read the kind of a subscription's expression (CheckClientRequestBody).

    Raises:
        FrameError: the body has no subscription.
    """
    subscription = parse_request(request.body).get("subscriptionData")
    if not isinstance(subscription, dict):
        raise FrameError("the request has no subscription")
    return str(subscription.get("expressionType") or TAG)


# ---- administrators


def text(field: str) -> Callable[[Command], str]:
    """Return what reads a field of the header."""
    return lambda request: Fields(request.ext).text(field)


def name(field: str) -> Callable[[Command], str]:
    """Return what reads a field of the header that is a name."""
    return lambda request: Fields(request.ext).name(field)


def place(request: Command) -> int:
    """Read the physical offset of a message."""
    return Fields(request.ext).long("offset", -MAX_LONG, MAX_LONG)


def key_query(request: Command) -> KeyQuery:
    """Read a request for messages with a key (QueryMessageRequestHeader)."""
    fields = Fields(request.ext)
    return KeyQuery(
        fields.text("topic"),
        fields.text("key"),
        fields.long("beginTimestamp", -MAX_LONG, MAX_LONG),
        fields.long("endTimestamp", -MAX_LONG, MAX_LONG),
        fields.long("maxNum", -MAX_INT, MAX_INT),
        request.ext.get("_UNIQUE_KEY_QUERY") == "true",
    )


def topic_settings(request: Command) -> list[WantedTopic]:
    """Read a request to create or change a topic."""
    return [_topic_settings(Fields(request.ext), "topic")]


def listed_topic_settings(request: Command) -> Iterator[WantedTopic]:
    """Read a request to create or change topics, as clients of RocketMQ 5 ask for it.

    Raises:
        FrameError: its body is wrong. Settings are checked one by one.
    """
    return map(_listed_settings, objects_in(request.body, "topicConfigList"))


def _listed_settings(given: Mapping[str, Any]) -> WantedTopic:
    return _topic_settings(Fields({key: str(value) for key, value in given.items()}), "topicName")


def _topic_settings(fields: Fields, named: str) -> WantedTopic:
    return WantedTopic(
        fields.name(named),
        fields.long("readQueueNums", 1, MOST_QUEUES),
        fields.long("writeQueueNums", 1, MOST_QUEUES),
        fields.long("perm", 0, MAX_INT),
        fields.flag("order"),
    )


def entries(request: Command) -> EntriesAsked:
    """Read a request for entries of a queue (QueryConsumeQueueRequestHeader)."""
    fields = Fields(request.ext)
    return EntriesAsked(
        NamedQueue(fields.name("topic"), fields.long("queueId", 0, MAX_INT)),
        fields.long("index", 0, MAX_LONG),
        fields.long("count", 0, MAX_INT),
        request.ext.get("consumerGroup") or "",
    )


def group_settings(request: Command) -> list[dict[str, Any]]:
    """Read a request to create or change a group.

    Raises:
        FrameError: its body is wrong.
    """
    return [parse_request(request.body)]


def listed_group_settings(request: Command) -> list[dict[str, Any]]:
    """Read a request to create or change groups, as clients of RocketMQ 5 ask for it.

    Raises:
        FrameError: its body is wrong.
    """
    return objects_in(request.body, "groupConfigList")


def deletion(request: Command) -> Deletion:
    """Read a request to delete a group."""
    fields = Fields(request.ext)
    return Deletion(fields.text("groupName"), fields.flag("removeOffset"))


def progress_asked(request: Command) -> GroupTopic:
    """Read a request for the progress of a group, in all topics or in one."""
    return GroupTopic(text("consumerGroup")(request), request.ext.get("topic", ""))


def group_topic(request: Command) -> GroupTopic:
    """Read the group and the topic that a request is about."""
    fields = Fields(request.ext)
    topic = fields.text("topic")
    return GroupTopic(fields.text("group"), topic)


def reset(request: Command) -> ResetAsked:
    """Read a request to have a group begin elsewhere (ResetOffsetRequestHeader)."""
    group, topic = group_topic(request)
    fields = Fields(request.ext)
    timestamp = fields.long("timestamp", -MAX_LONG, MAX_LONG)
    return ResetAsked(group, topic, timestamp, fields.flag("isForce"))


def sums(request: Command) -> SumsAsked:
    """Read a request for what was counted."""
    fields = Fields(request.ext)
    return SumsAsked(fields.text("statsName"), fields.text("statsKey"))


def body(request: Command) -> bytes:
    """Return the body of a request."""
    return request.body
