"""Reads what clients say of themselves: heartbeats, with the subscriptions of consumers.

C++ writes numbers for enums and texts for numbers, and leaves empty sets out. Upstream:
HeartbeatData, ConsumerData, SubscriptionData.
"""

from __future__ import annotations

from typing import Any, Final

from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.broker.core.subscriptions import (
    TAG,
    Heartbeat,
    Membership,
    Subscription,
    tag_codes,
)
from rmqstore_spark.errors import FrameError
from rmqstore_spark.layout.constants import is_listed_topic_name, is_safe_group_name
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME

_MOST_GROUPS: Final = 1024
_MOST_SUBSCRIPTIONS: Final = 1024
_MAX_BODY: Final = 1 << 20
"""Bytes. The event loop reads a heartbeat and hashes its tags, while all others wait."""
_MODELS: Final = ("BROADCASTING", "CLUSTERING")
_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)  # fmt: skip


def read_heartbeat(request: Command) -> Heartbeat:
    """Read a heartbeat.

    Raises:
        FrameError: it is none, or too long.
    """
    body = request.body
    if len(body) > _MAX_BODY:
        raise FrameError(f"a heartbeat has at most {_MAX_BODY} bytes, this one has {len(body)}")
    told = parse_body(body) if body else None
    if not isinstance(told, dict):
        raise FrameError("the heartbeat has no body")
    client_id = told.get("clientID")
    if not isinstance(client_id, str) or not 0 < len(client_id) <= MAX_NAME:
        raise FrameError(f"clientID must be 1 to {MAX_NAME} characters")
    producers = _list(told.get("producerDataSet"), _MOST_GROUPS)
    consumers = _list(told.get("consumerDataSet"), _MOST_GROUPS)
    return Heartbeat(
        client_id,
        request.language,
        request.version,
        tuple(_group(each) for each in producers),
        tuple(_membership(each) for each in consumers),
    )


def _membership(told: dict[str, Any]) -> Membership:
    found = [
        _subscription(each) for each in _list(told.get("subscriptionDataSet"), _MOST_SUBSCRIPTIONS)
    ]
    return Membership(
        _group(told),
        _enum(told.get("consumeType"), _TYPES),
        _enum(told.get("messageModel"), _MODELS),
        _enum(told.get("consumeFromWhere"), _FROM_WHERE),
        {each.topic: each for each in found},
    )


def _subscription(told: dict[str, Any]) -> Subscription:
    topic, expression = told.get("topic"), told.get("subString") or "*"
    kind = told.get("expressionType") or TAG
    if not isinstance(topic, str) or not is_listed_topic_name(topic):
        raise FrameError("a subscription has no valid topic")
    if not isinstance(expression, str) or not isinstance(kind, str):
        raise FrameError(f"the subscription of the topic {topic} is not text")
    # Not its `codeSet`: C++ sends zeros there.
    try:
        codes = tag_codes(expression) if kind == TAG else None
    except Refusal as error:
        raise FrameError(error.remark) from error
    return Subscription(topic, expression, kind[:MAX_NAME], _number(told.get("subVersion")), codes)


def _group(told: dict[str, Any]) -> str:
    name = told.get("groupName")
    if not isinstance(name, str) or not is_safe_group_name(name):
        raise FrameError("a groupName in the heartbeat is not valid")
    return name


def _list(given: Any, most: int) -> list[dict[str, Any]]:
    found = [] if given is None else given
    if not isinstance(found, list) or len(found) > most:
        raise FrameError(f"a set in the heartbeat must have at most {most} entries")
    if not all(isinstance(each, dict) for each in found):
        raise FrameError("a set in the heartbeat holds more than objects")
    return found


def _enum(given: Any, names: tuple[str, ...]) -> str:
    """Return the name of a value that is a name or its place."""
    if isinstance(given, str) and given in names:
        return given
    if type(given) is int and 0 <= given < len(names):
        return names[given]
    return names[-1] if given is None else names[0]


def _number(given: Any) -> int:
    text = str(given)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
