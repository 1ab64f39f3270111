"""The table of request codes: what RocketMQ's clients and administrators may ask of a broker.

A code without a row is refused, and for administrators alone. docs/features.md has the table, too:
`python -m tools.docs` writes it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rmqstore_spark.broker.core.administration.groups import Reset, ResetAsked
from rmqstore_spark.broker.core.administration.state import WaitingRequests, expire
from rmqstore_spark.broker.core.administration.topics import WantedTopic
from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.broker.faces.remoting import headers as header
from rmqstore_spark.broker.faces.remoting import reports as tell
from rmqstore_spark.broker.faces.remoting import results as result
from rmqstore_spark.broker.faces.remoting import rights as need
from rmqstore_spark.broker.faces.remoting.membership import (
    Members,
    heard,
    read_heartbeat,
    require_tags,
)
from rmqstore_spark.broker.faces.remoting.relaying import Relaying, Telling
from rmqstore_spark.broker.faces.remoting.row import Lane, Row, as_it_is, nothing, whole
from rmqstore_spark.remoting.codec.codes import RequestCode as Code
from rmqstore_spark.remoting.connection import RemotingConnection


@dataclass
class Parts:
    """The parts of a broker with this face.

    Attributes:
        core: decides.
        membership: takes heartbeats.
        relaying: asks one client for another.
        telling: tells clients.
        sends, pulls: requests that wait.
    """

    core: Core
    membership: Members
    relaying: Relaying
    telling: Telling
    sends: Sized = ()
    pulls: Sized = ()

    @property
    def waiting(self) -> WaitingRequests:
        """How many requests wait to be handled."""
        return WaitingRequests(len(self.sends), len(self.pulls))


LOOP: Final = Lane("event loop")
FILES: Final = Lane("files")
SEARCHES: Final = Lane("searches")
RETURNED: Final = Lane("messages that consumers send back")
REPORTS: Final = Lane("files; answered when it is on disk")
SENDS: Final = Lane("sends", gathers=True)
PULLS: Final = Lane("pulls", gathers=True)
ENDS: Final = Lane("ends of transactions", gathers=True)
CHANGES: Final = Lane("changes", gathers=True)
REFUSED: Final = "not supported"
"""What a code asks for that is refused."""

_Row: TypeAlias = Row[Parts, Any, Any]

_ACCOUNTS: Final = (
    "accounts are changed in the files of aclPath, which the broker reads again when they change"
)
_POP: Final = (
    "messages are pulled alone, so set clientRebalance of push consumers to true, their default"
)
_ACCOUNT_CODES: Final = (
    Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    *map(Code, range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1)),
)  # fmt: skip
_POP_CODES: Final = (
    *map(Code, range(Code.POP_MESSAGE, Code.POP_ROLLBACK + 1)), Code.BATCH_ACK_MESSAGE,
    Code.QUERY_ASSIGNMENT, Code.SET_MESSAGE_REQUEST_MODE,
)  # fmt: skip


def _refusing(reason: Reason, remark: str) -> Callable[[Parts, RemotingConnection, object], None]:
    """Return a handler that refuses."""

    def refuse(_: Parts, __: RemotingConnection, ___: object) -> None:
        raise Refusal(reason, remark)

    return refuse


def _no(code: Code, why: str) -> _Row:
    """Return the row of a code that is refused, with what to do instead."""
    remark = f" request type {code} not supported: {why}"
    return Row(code, REFUSED, LOOP, None, nothing, _refusing(Reason.UNSUPPORTED, remark))


def _nothing(_: Parts, __: RemotingConnection, ___: object) -> None:
    """Do nothing."""


def _update_topics(
    parts: Parts, connection: RemotingConnection, wanted: Iterable[WantedTopic]
) -> None:
    for settings in wanted:
        parts.core.topics.update(settings, connection.peer)


def _reset(parts: Parts, connection: RemotingConnection, asked: ResetAsked) -> tuple[str, Reset]:
    found = parts.core.groups.reset(asked, connection.peer)
    parts.telling.begin_at(found)
    return _name(parts), found


def _name(parts: Parts) -> str:
    """Return the broker's name."""
    return parts.core.store.config.broker_name


def _address(parts: Parts) -> str:
    """Return the broker's address."""
    return parts.core.store.config.host[0]


_TOPIC_AND_GROUP: Final = need.of_topic_and_group("consumerGroup")
_GROUP: Final = need.of_group("consumerGroup")
_OFFSET: Final = result.in_header("offset")

# fmt: off
ROWS: Final[tuple[_Row, ...]] = (
    # ---- producers
    Row(Code.SEND_MESSAGE, "store a message",
        SENDS, need.LONG_SEND, header.long_send,
        lambda p, c, asked: p.core.producing.accept(asked, c.peer), result.sent),
    Row(Code.SEND_MESSAGE_V2, "store a message; the names of its fields are short",
        SENDS, need.SHORT_SEND, header.short_send,
        lambda p, c, asked: p.core.producing.accept(asked, c.peer), result.sent),
    Row(Code.SEND_BATCH_MESSAGE, "store several messages in a queue",
        SENDS, need.SHORT_SEND, header.short_send,
        lambda p, c, asked: p.core.producing.accept_batch(asked, c.peer), result.sent),
    Row(Code.SEND_REPLY_MESSAGE, "pass a reply on to the producer that waits for it",
        LOOP, need.LONG_SEND, header.long_reply,
        lambda p, c, asked: p.relaying.reply(c, asked), result.replied),
    Row(Code.SEND_REPLY_MESSAGE_V2, "pass a reply on; the names of its fields are short",
        LOOP, need.SHORT_SEND, header.short_reply,
        lambda p, c, asked: p.relaying.reply(c, asked), result.replied),
    Row(Code.END_TRANSACTION, "commit or roll back a transaction",
        ENDS, need.END, header.end,
        lambda _p, _c, asked: asked, result.ended),
    # ---- consumers
    Row(Code.PULL_MESSAGE, "messages of a queue, or wait for them",
        PULLS, _TOPIC_AND_GROUP, header.pull,
        lambda p, c, asked: p.core.pulls.accept(asked, c.peer), result.pulled),
    Row(Code.LITE_PULL_MESSAGE, "the same, from lite pull consumers of RocketMQ 5",
        PULLS, _TOPIC_AND_GROUP, header.pull,
        lambda p, c, asked: p.core.pulls.accept(asked, c.peer), result.pulled),
    Row(Code.QUERY_CONSUMER_OFFSET, "how far a group is in a queue",
        FILES, _TOPIC_AND_GROUP, header.group_queue,
        lambda p, _c, asked: p.core.offsets.of_group(asked), _OFFSET),
    Row(Code.UPDATE_CONSUMER_OFFSET, "report how far a group is in a queue",
        REPORTS, _TOPIC_AND_GROUP, header.report,
        lambda p, _c, asked: p.core.offsets.report(asked)),
    Row(Code.CONSUMER_SEND_MSG_BACK, "take a message back, to be consumed again or given up",
        RETURNED, need.SEND_BACK, header.returned,
        lambda p, _c, asked: p.core.send_back.take(asked)),
    Row(Code.LOCK_BATCH_MQ, "lock queues for one consumer",
        LOOP, need.LOCKS, header.locks,
        lambda p, _c, asked: p.core.locks.lock(asked), result.locked),
    Row(Code.UNLOCK_BATCH_MQ, "unlock queues",
        LOOP, need.LOCKS, header.locks,
        lambda p, _c, asked: p.core.locks.unlock(asked)),
    Row(Code.GET_MAX_OFFSET, "where a queue ends",
        FILES, need.ABOUT_TOPIC, header.queue,
        lambda p, _c, asked: p.core.offsets.end(asked), _OFFSET),
    Row(Code.GET_MIN_OFFSET, "where a queue begins",
        FILES, need.ABOUT_TOPIC, header.queue,
        lambda p, _c, asked: p.core.offsets.begin(asked), _OFFSET),
    Row(Code.SEARCH_OFFSET_BY_TIMESTAMP, "where the messages of a time begin",
        FILES, need.ABOUT_TOPIC, header.queue_and_time,
        lambda p, _c, asked: p.core.offsets.near(*asked), _OFFSET),
    Row(Code.GET_EARLIEST_MSG_STORETIME, "when the first message of a queue was stored",
        FILES, need.ABOUT_TOPIC, header.queue,
        lambda p, _c, asked: p.core.offsets.first_stored(asked), result.in_header("timestamp")),
    # ---- clients
    Row(Code.HEART_BEAT, "take note of a client, its groups and subscriptions",
        LOOP, need.HEARTBEAT, read_heartbeat,
        lambda p, c, asked: p.membership.hear(c, asked), heard),
    Row(Code.UNREGISTER_CLIENT, "take a client out of its groups",
        LOOP, need.UNREGISTER, header.left_groups,
        lambda p, c, asked: p.core.clients.leave(c, *asked)),
    Row(Code.GET_CONSUMER_LIST_BY_GROUP, "the consumers of a group",
        LOOP, _GROUP, header.text("consumerGroup"),
        lambda p, _c, asked: p.core.clients.listed(asked), result.members),
    Row(Code.CHECK_CLIENT_CONFIG, "whether a subscription can be served",
        LOOP, need.CLIENT_CONFIG, header.kind_of_subscription,
        lambda _p, _c, asked: require_tags(asked)),
    # ---- messages
    Row(Code.VIEW_MESSAGE_BY_ID, "a message by its physical offset",
        SEARCHES, need.BY_PLACE, header.place,
        lambda p, _c, asked: p.core.queries.at(asked), result.in_body),
    Row(Code.QUERY_MESSAGE, "messages by a key",
        SEARCHES, need.SUB_TOPIC, header.key_query,
        lambda p, _c, asked: p.core.queries.with_key(asked), tell.messages),
    # ---- topics
    Row(Code.UPDATE_AND_CREATE_TOPIC, "create or change a topic",
        CHANGES, None, header.topic_settings,
        lambda p, c, asked: _update_topics(p, c, asked)),
    Row(Code.UPDATE_AND_CREATE_TOPIC_LIST, "create or change topics",
        CHANGES, None, header.listed_topic_settings,
        lambda p, c, asked: _update_topics(p, c, asked)),
    Row(Code.DELETE_TOPIC_IN_BROKER, "delete a topic",
        CHANGES, None, header.name("topic"),
        lambda p, _c, asked: p.core.topics.require_deletable(asked)),
    Row(Code.GET_TOPIC_STATS_INFO, "where the queues of a topic begin and end",
        FILES, need.ABOUT_TOPIC, header.name("topic"),
        lambda p, _c, asked: (_name(p), p.core.topics.ranges(asked)), tell.ranges),
    Row(Code.QUERY_CONSUME_QUEUE, "entries of a queue",
        FILES, None, header.entries,
        lambda p, _c, asked: (asked, p.core.topics.entries(asked)), tell.entries),
    Row(Code.GET_TOPIC_CONFIG, "the settings of a topic",
        FILES, need.ABOUT_TOPIC, header.text("topic"),
        lambda p, _c, asked: p.core.topics.config(asked), tell.topic_config),
    Row(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "the topics of the system",
        FILES, None, nothing,
        lambda p, _c, _asked: p.core.topics.of_the_system(), result.named("topicList")),
    Row(Code.GET_CONSUMER_CONNECTION_LIST, "who consumes with a group",
        LOOP, _GROUP, header.name("consumerGroup"),
        lambda p, _c, asked: p.core.clients.consumers(asked), result.consumers),
    Row(Code.GET_PRODUCER_CONNECTION_LIST, "who sends with a group",
        LOOP, None, header.name("producerGroup"),
        lambda p, _c, asked: p.core.clients.connected_producers(asked), result.producers),
    Row(Code.GET_ALL_PRODUCER_INFO, "who sends",
        LOOP, None, nothing,
        lambda p, _c, _asked: (p.core.store.clock(), p.core.clients.producer_groups()),
        result.all_producers),
    # ---- groups
    Row(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "create or change a group",
        CHANGES, None, header.group_settings,
        lambda p, _c, asked: p.core.groups.update(asked)),
    Row(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "create or change groups",
        CHANGES, None, header.listed_group_settings,
        lambda p, _c, asked: p.core.groups.update(asked)),
    Row(Code.DELETE_SUBSCRIPTIONGROUP, "delete a group",
        CHANGES, None, header.deletion,
        lambda p, c, asked: p.core.groups.delete(asked, c.peer)),
    Row(Code.GET_CONSUME_STATS, "how far a group is",
        FILES, _GROUP, header.progress_asked,
        lambda p, _c, asked: (_name(p), p.core.groups.progress(asked)), tell.progress),
    Row(Code.GET_BROKER_CONSUME_STATS, "how far all groups are",
        FILES, None, nothing,
        lambda p, _c, _asked: (_name(p), _address(p), p.core.groups.progress_of_all()),
        tell.all_progress),
    Row(Code.QUERY_TOPIC_CONSUME_BY_WHO, "the groups that consume a topic",
        FILES, need.ABOUT_TOPIC, header.text("topic"),
        lambda p, _c, asked: p.core.groups.consumers_of(asked), result.named("groupList")),
    Row(Code.QUERY_CONSUME_TIME_SPAN, "of which times a group has messages left",
        FILES, None, header.group_topic,
        lambda p, _c, asked: (_name(p), p.core.groups.spans(asked)), tell.spans),
    Row(Code.INVOKE_BROKER_TO_RESET_OFFSET, "have the consumers of a group begin elsewhere",
        FILES, need.of_topic_and_group("group"), header.reset,
        lambda p, c, asked: _reset(p, c, asked), tell.reset),
    Row(Code.GET_SUBSCRIPTIONGROUP_CONFIG, "the settings of a group",
        FILES, need.of_group("group"), header.text("group"),
        lambda p, _c, asked: p.core.groups.config(asked), result.in_json),
    Row(Code.QUERY_TOPICS_BY_CONSUMER, "the topics in which a group has offsets",
        FILES, need.of_group("group"), header.text("group"),
        lambda p, _c, asked: (_address(p), p.core.groups.topics_of(asked)), tell.topics_of),
    Row(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, "what a group consumes of a topic",
        FILES, need.of_topic_and_group("group"), header.group_topic,
        lambda p, _c, asked: (*asked, p.core.groups.subscription(asked)), tell.subscription),
    Row(Code.GET_CONSUMER_RUNNING_INFO, "ask a consumer how it is",
        LOOP, None, whole,
        lambda p, _c, asked: p.relaying.running_info(asked), as_it_is),
    # ---- the broker
    Row(Code.GET_BROKER_RUNTIME_INFO, "figures of the broker",
        FILES, None, nothing,
        lambda p, _c, _asked: p.core.state.figures(p.waiting), tell.figures),
    Row(Code.VIEW_BROKER_STATS_DATA, "what was sent or consumed in a time",
        FILES, None, header.sums,
        lambda p, _c, asked: p.core.state.sums(asked), tell.sums),
    Row(Code.GET_BROKER_CONFIG, "the configuration",
        FILES, None, nothing,
        lambda p, _c, _asked: p.core.state.config(), tell.config),
    Row(Code.UPDATE_BROKER_CONFIG, "change the configuration",
        FILES, None, header.body,
        lambda p, c, asked: p.core.state.update_config(asked, c.peer)),
    Row(Code.DELETE_EXPIRED_COMMITLOG, "remove what has expired",
        FILES, None, nothing,
        lambda p, c, _asked: expire(p.core.store, c.peer)),
    # The files of queues go with the segments that they point to, and the queues of a topic with
    # the topic: there is nothing to clean.
    Row(Code.CLEAN_EXPIRED_CONSUMEQUEUE, "remove files of queues without use: there are none",
        FILES, None, nothing, _nothing),
    Row(Code.CLEAN_UNUSED_TOPIC, "remove queues of deleted topics: there are none",
        FILES, None, nothing, _nothing),
    # ---- slaves
    Row(Code.GET_ALL_TOPIC_CONFIG, "all topics",
        FILES, need.ANY_ACCOUNT, header.asks_for_queue_ends,
        lambda p, _c, asked: p.core.tables.topics(with_queue_ends=asked), result.in_json),
    Row(Code.GET_ALL_CONSUMER_OFFSET, "the offsets of all groups",
        FILES, None, nothing,
        lambda p, _c, _asked: p.core.tables.consumer_offsets(), result.in_json),
    Row(Code.GET_ALL_DELAY_OFFSET, "how far delayed messages are delivered",
        FILES, None, nothing,
        lambda p, _c, _asked: p.core.tables.delay_offsets(), result.in_json),
    Row(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "all groups",
        FILES, None, nothing,
        lambda p, _c, _asked: p.core.tables.groups(), result.in_json),
    # Slaves of RocketMQ 5 hear that no group consumes by POP, and what they hear of a broker that
    # has no timer wheel.
    Row(Code.GET_ALL_MESSAGE_REQUEST_MODE, "which groups consume by POP: none",
        FILES, None, nothing, lambda _p, _c, _asked: {}, result.named("messageRequestModeMap")),
    Row(Code.GET_TIMER_CHECK_POINT, "how far timer messages are: there are none",
        FILES, None, nothing, _refusing(Reason.WRONG, "The timerCheckpoint is null")),
    Row(Code.GET_TIMER_METRICS, "counts of timer messages: there are none",
        FILES, None, nothing, _refusing(Reason.WRONG, "The timerMessageStore is null")),
    # ---- not supported
    *(_no(code, _ACCOUNTS) for code in _ACCOUNT_CODES),
    *(_no(code, _POP) for code in _POP_CODES),
    _no(Code.RECALL_MESSAGE, "only timer messages can be recalled, which this broker has not"),
    _no(Code.CONSUME_MESSAGE_DIRECTLY, "consumers get messages only as they pull them; reset the "
        "group with mqadmin resetOffsetByTime"),
)
# fmt: on
