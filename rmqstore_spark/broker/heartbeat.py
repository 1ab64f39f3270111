"""Reads what clients say of themselves: heartbeats, with the subscriptions of consumers.

C++ writes numbers for enums and texts for numbers, and leaves empty sets out. Upstream:
HeartbeatData, ConsumerData, SubscriptionData, FilterAPI.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rmqstore_spark.errors import FrameError
from rmqstore_spark.layout.constants import is_listed_topic_name, is_safe_group_name
from rmqstore_spark.layout.index.hashing import java_hash_code_str
from rmqstore_spark.layout.spans import I4
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.fields import MAX_NAME

__all__ = [
    *("TAG", "Heartbeat", "Membership", "Subscription", "read_heartbeat", "tag_codes", "tags_in"),
]

TAG: Final = "TAG"
"""The type of expressions that name tags."""

_MOST_GROUPS: Final = 1024
_MOST_SUBSCRIPTIONS: Final = 1024
_MOST_TAGS: Final = 1024
_MAX_EXPRESSION: Final = 1 << 16
_MAX_BODY: Final = 1 << 20
"""Bytes. The event loop reads a heartbeat and hashes its tags, while all others wait."""
_MODELS: Final = ("BROADCASTING", "CLUSTERING")
_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)  # fmt: skip


@dataclass(frozen=True)
class Subscription:
    """What a group consumes of a topic.

    Attributes:
        topic: the topic.
        expression: which messages, as text.
        kind: of the expression: TAG or another.
        version: a later one replaces an earlier one.
        codes: hash codes of the tags; None: all messages.
    """

    topic: str
    expression: str
    kind: str
    version: int
    codes: I4 | None


@dataclass(frozen=True)
class Membership:
    """A consumer of a group.

    Attributes:
        group: its name.
        kind, model, from_where: how it consumes, by RocketMQ's names.
        subscriptions: by topic.
    """

    group: str
    kind: str
    model: str
    from_where: str
    subscriptions: dict[str, Subscription]


@dataclass(frozen=True)
class Heartbeat:
    """What a client says of itself.

    Attributes:
        client_id: its name.
        producers: the names of its producer groups.
        consumers: its consumers.
    """

    client_id: str
    producers: tuple[str, ...]
    consumers: tuple[Membership, ...]

    def without(self, groups: Collection[str]) -> Heartbeat:
        """Return this heartbeat without some consumer groups."""
        kept = tuple(told for told in self.consumers if told.group not in groups)
        return replace(self, consumers=kept)


def tag_codes(expression: str) -> I4 | None:
    """Return the hash codes of the tags of an expression such as `TagA || TagB`, ascending.

    None if all messages are wanted.

    Raises:
        FrameError: it is too long.
    """
    text = expression.strip()
    if len(text) > _MAX_EXPRESSION or text.count("||") >= _MOST_TAGS:
        raise FrameError(f"a subscription has more than {_MOST_TAGS} tags")
    if text in ("", "*"):
        return None
    return np.unique(np.array([java_hash_code_str(tag) for tag in tags_in(text)], np.int32))


def tags_in(expression: str) -> list[str]:
    """Return the tags of an expression such as `TagA || TagB`; none if it means all messages."""
    text = expression.strip()
    tags = [] if text == "*" else [tag.strip() for tag in text.split("||")]
    return [tag for tag in tags if tag]


def read_heartbeat(body: bytes) -> Heartbeat:
    """Read the body of a heartbeat.

    Raises:
        FrameError: it is none, or too long.
    """
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
    codes = tag_codes(expression) if kind == TAG else None
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
