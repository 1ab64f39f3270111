"""What an account needs for requests (upstream: PlainAccessValidator).

RocketMQ checks some codes, and lets every account do everything else. Here, a code whose row names
no rights is for administrators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmqstore_spark.broker.acl.accounts import Need, Right, need_of_group, need_of_topic
from rmqstore_spark.broker.faces.remoting.membership import read_heartbeat
from rmqstore_spark.broker.faces.remoting.row import Rights
from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.bodies import parse_request
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import Fields


def _of_topic(field: str, right: Right, text: str) -> Rights:
    return Rights(text, lambda request: [need_of_topic(_named(request, field), right)])


def of_group(field: str) -> Rights:
    """Return the rights of a request about a group that a field of its header names."""
    return Rights("SUB of the group", lambda request: [need_of_group(_named(request, field))])


def of_topic_and_group(field: str) -> Rights:
    """Return the rights of a request about a topic, and a group that a field names."""
    return Rights(
        "SUB of topic and group",
        lambda request: [
            need_of_topic(_named(request, "topic"), Right.SUB),
            need_of_group(_named(request, field)),
        ],
    )


LONG_SEND: Final = _of_topic("topic", Right.PUB, "PUB of the topic")
SHORT_SEND: Final = _of_topic("b", Right.PUB, "PUB of the topic")
SUB_TOPIC: Final = _of_topic("topic", Right.SUB, "SUB of the topic")
ABOUT_TOPIC: Final = _of_topic("topic", Right.ANY, "PUB or SUB of the topic")


def _heartbeat(request: Command) -> Iterator[Need]:
    for told in read_heartbeat(request).consumers:
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
    yield need_of_group(_named(request, "group"))
    topic = request.ext.get("originTopic")
    if topic:  # what the client says: the gate looks at the message itself
        yield need_of_topic(topic, Right.SUB)


def _nothing(_: Command) -> tuple[Need, ...]:
    return ()


ANY_ACCOUNT: Final = Rights("to exist", _nothing)
HEARTBEAT: Final = Rights("SUB of its groups, and of their topics", _heartbeat)
UNREGISTER: Final = Rights("SUB of the group", _unregister)
LOCKS: Final = Rights("SUB of the group, and of the topics", _locks)
CLIENT_CONFIG: Final = Rights("SUB of topic and group", _client_config)
SEND_BACK: Final = Rights(
    "SUB of the group, and of the message's topic", _send_back, ("offset", Right.SUB)
)
BY_PLACE: Final = Rights("SUB of the message's topic", _nothing, ("offset", Right.SUB))
END: Final = Rights("PUB of the message's topic", _nothing, ("commitLogOffset", Right.PUB))


def _named(request: Command, field: str) -> str:
    return Fields(request.ext).text(field)


def _text(told: Mapping[str, Any], name: str) -> str:
    found = told.get(name)
    if not isinstance(found, str):
        raise FrameError(f"{name} must be a text")
    return found
