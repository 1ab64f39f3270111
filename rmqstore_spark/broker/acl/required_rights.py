"""What each request needs (upstream: PlainAccessValidator).

RocketMQ checks some codes, and lets every account do everything else. Here, a code that is not
listed is for administrators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from rmqstore_spark.broker.acl.rights import Need, Right, need_of_group, need_of_topic
from rmqstore_spark.broker.heartbeat import read_heartbeat
from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.bodies import parse_request
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import Fields

__all__ = ["BY_PLACE", "Needs", "needs_of"]


class Needs(NamedTuple):
    """What a request needs.

    Attributes:
        is_admin: whether it is for administrators only.
        rights: all of these.
    """

    is_admin: bool
    rights: tuple[Need, ...] = ()


_Reader = Callable[[Command], Iterable[Need]]


def _sends(request: Command) -> Iterator[Need]:
    is_long = request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
    field = "topic" if is_long else "b"
    yield need_of_topic(Fields(request.ext).text(field), Right.PUB)


def _topic(right: Right) -> _Reader:
    return lambda request: [need_of_topic(Fields(request.ext).text("topic"), right)]


def _group(field: str) -> _Reader:
    return lambda request: [need_of_group(Fields(request.ext).text(field))]


def _topic_and_group(field: str) -> _Reader:
    topic, group = _topic(Right.SUB), _group(field)
    return lambda request: [*topic(request), *group(request)]


def _heartbeat(request: Command) -> Iterator[Need]:
    for told in read_heartbeat(request.body).consumers:
        yield need_of_group(told.group)
        for topic in told.subscriptions:
            yield need_of_topic(topic, Right.SUB)


def _unregister(request: Command) -> Iterator[Need]:
    group = request.ext.get("consumerGroup")
    if group:  # C++ sends an empty one for a producer
        yield need_of_group(group)


def _locks(request: Command) -> Iterator[Need]:
    told = parse_request(request.body)
    yield need_of_group(_text(told, "consumerGroup"))
    queues = told.get("mqSet")
    named = {_text(queue, "topic") for queue in queues if isinstance(queue, dict)} if queues else ()
    for topic in sorted(named):
        yield need_of_topic(topic, Right.SUB)


def _client_config(request: Command) -> Iterator[Need]:
    told = parse_request(request.body)
    yield need_of_group(_text(told, "group"))
    subscription = told.get("subscriptionData")
    if isinstance(subscription, dict):
        yield need_of_topic(_text(subscription, "topic"), Right.SUB)


def _send_back(request: Command) -> Iterator[Need]:
    yield need_of_group(Fields(request.ext).text("group"))
    topic = request.ext.get("originTopic")
    if topic:  # what the client says: the gate looks at the message itself
        yield need_of_topic(topic, Right.SUB)


def _nothing(_: Command) -> Iterable[Need]:
    return ()


_READERS: Final[Mapping[int, _Reader]] = {
    RequestCode.SEND_MESSAGE: _sends,
    RequestCode.SEND_MESSAGE_V2: _sends,
    RequestCode.SEND_BATCH_MESSAGE: _sends,
    RequestCode.SEND_REPLY_MESSAGE: _sends,
    RequestCode.SEND_REPLY_MESSAGE_V2: _sends,
    RequestCode.PULL_MESSAGE: _topic_and_group("consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: _topic_and_group("consumerGroup"),
    RequestCode.QUERY_CONSUMER_OFFSET: _topic_and_group("consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _topic_and_group("consumerGroup"),
    RequestCode.QUERY_MESSAGE: _topic(Right.SUB),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(Right.ANY),
    RequestCode.GET_MAX_OFFSET: _topic(Right.ANY),
    RequestCode.GET_MIN_OFFSET: _topic(Right.ANY),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(Right.ANY),
    RequestCode.GET_TOPIC_STATS_INFO: _topic(Right.ANY),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _topic(Right.ANY),
    RequestCode.GET_CONSUME_STATS: _group("consumerGroup"),
    RequestCode.GET_TOPIC_CONFIG: _topic(Right.ANY),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _group("group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _topic_and_group("group"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _topic_and_group("group"),
    RequestCode.VIEW_MESSAGE_BY_ID: _nothing,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.END_TRANSACTION: _nothing,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _group("consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.CHECK_CLIENT_CONFIG: _client_config,
}

BY_PLACE: Final[Mapping[int, tuple[str, Right]]] = {
    RequestCode.VIEW_MESSAGE_BY_ID: ("offset", Right.SUB),
    RequestCode.CONSUMER_SEND_MSG_BACK: ("offset", Right.SUB),
    RequestCode.END_TRANSACTION: ("commitLogOffset", Right.PUB),
}
"""Codes of requests that name a message by its physical offset: the field, and the right that they
need for the topic of that message."""


def needs_of(request: Command) -> Needs:
    """Return what a request needs, but for what only the message that it names can tell.

    Raises:
        RemotingError: a field is missing.
        FrameError: the body cannot be read.
    """
    reader = _READERS.get(request.code)
    return Needs(True) if reader is None else Needs(False, tuple(reader(request)))


def _text(told: Mapping[str, Any], name: str) -> str:
    found = told.get(name)
    if not isinstance(found, str):
        raise FrameError(f"{name} must be a text")
    return found
