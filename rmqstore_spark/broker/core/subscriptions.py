"""What clients say of themselves: their groups, and what consumers want of which topics.

Upstream: HeartbeatData, ConsumerData, SubscriptionData, FilterAPI.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.layout.index.hashing import java_hash_code_str
from rmqstore_spark.layout.spans import I4

TAG: Final = "TAG"
"""The type of expressions that name tags."""

_MOST_TAGS: Final = 1024
_MAX_EXPRESSION: Final = 1 << 16


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
        language, version: of its program, by RocketMQ's names and numbers.
        producers: the names of its producer groups.
        consumers: its consumers.
    """

    client_id: str
    language: str
    version: int
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
        Refusal: it is too long.
    """
    text = expression.strip()
    if len(text) > _MAX_EXPRESSION or text.count("||") >= _MOST_TAGS:
        raise Refusal(Reason.WRONG, f"a subscription has more than {_MOST_TAGS} tags")
    if text in ("", "*"):
        return None
    return np.unique(np.array([java_hash_code_str(tag) for tag in tags_in(text)], np.int32))


def tags_in(expression: str) -> list[str]:
    """Return the tags of an expression such as `TagA || TagB`; none if it means all messages."""
    text = expression.strip()
    tags = [] if text == "*" else [tag.strip() for tag in text.split("||")]
    return [tag for tag in tags if tag]
