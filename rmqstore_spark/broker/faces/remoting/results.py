"""Makes answers of what a broker has decided for clients: codes, header fields, JSON bodies.

Upstream: the classes of org.apache.rocketmq.common.protocol.body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.broker.core.clients import Group, Member, MemberNames, Peer
from rmqstore_spark.broker.core.consumers.locks import LockedQueue
from rmqstore_spark.broker.core.consumers.pulls import Outcome, Pull
from rmqstore_spark.broker.core.messages import Send
from rmqstore_spark.broker.core.subscriptions import TAG, Subscription, tags_in
from rmqstore_spark.broker.core.transactions import End
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command


def in_json(request: Command, value: object) -> Command:
    """Answer with a value that JSON has."""
    return request.answer(body=dump_body(value))


def named(field: str) -> Callable[[Command, object], Command]:
    """Return what answers with a JSON object of one field."""
    return lambda request, value: in_json(request, {field: value})


def in_header(field: str) -> Callable[[Command, object], Command]:
    """Return what answers with a value in a field of the header."""
    return lambda request, value: request.answer(ext={field: str(value)})


def in_body(request: Command, value: bytes) -> Command:
    """Answer with bytes."""
    return request.answer(body=value)


# ---- producers

REGION: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""What a broker adds to the answer of every send."""

_STORED: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


def sent(request: Command, send: Send) -> Command:
    """Tell a producer where its messages are stored (SendMessageResponseHeader)."""
    ext = {
        "msgId": send.msg_ids,
        "queueId": str(send.told_queue),
        "queueOffset": str(send.offset),
        **REGION,
    }
    return request.answer(_STORED[send.status or PutStatus.PUT_OK], send.remark or None, ext)


def replied(request: Command, send: Send) -> Command:
    """Tell who has sent a reply that it was passed on; it is not stored."""
    ext = {"msgId": "0", "queueId": str(max(send.queue_id, 0)), "queueOffset": "0", **REGION}
    return request.answer(ext=ext)


def ended(request: Command, end: End) -> Command:
    """Tell a producer that its transaction has ended."""
    return request.answer(remark=end.remark or None)


# ---- consumers

_OUTCOMES: Final = {
    Outcome.FOUND: ResponseCode.SUCCESS,
    Outcome.AGAIN: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Outcome.NOTHING: ResponseCode.PULL_NOT_FOUND,
    Outcome.MOVED: ResponseCode.PULL_OFFSET_MOVED,
}


def pulled(request: Command, pull: Pull) -> Command:
    """Give a consumer messages, or tell it how to continue (PullMessageResponseHeader)."""
    reading = pull.reading
    ext = {
        "suggestWhichBrokerId": str(pull.broker_id),
        "nextBeginOffset": str(pull.next),
        "minOffset": str(reading.least),
        "maxOffset": str(reading.most),
    }
    if reading.void:
        ext["voidEntries"] = str(reading.void)  # for Spark: what is not sent is not lost
    return request.answer(_OUTCOMES[pull.outcome], reading.status, ext, reading.data)


def locked(request: Command, queues: Iterable[LockedQueue]) -> Command:
    """Tell a consumer which queues it has locked."""
    told = [
        {"brokerName": each.broker_name, "queueId": each.queue_id, "topic": each.topic}
        for each in queues
    ]
    return in_json(request, {"lockOKMQSet": told})


# ---- clients

_member_names: WeakKeyDictionary[MemberNames, bytes] = WeakKeyDictionary()
"""Encoded lists: after a change of a group, all its members ask for them."""


def members(request: Command, names: MemberNames) -> Command:
    """Tell a consumer who else is in its group. In the event loop only."""
    body = _member_names.get(names)
    if body is None:
        body = _member_names[names] = dump_body({"consumerIdList": list(names.names)})
    return request.answer(body=body)


def consumers(request: Command, group: Group) -> Command:
    """Tell who consumes with a group (ConsumerConnection)."""
    told = group.told
    body = {
        "connectionSet": _connections(group.members.items()),
        "consumeFromWhere": told.from_where,
        "consumeType": told.kind,
        "messageModel": told.model,
        "subscriptionTable": {
            each.topic: subscription_data(each) for each in told.subscriptions.values()
        },
    }
    return in_json(request, body)


def producers(request: Command, members: Iterable[tuple[Peer, Member]]) -> Command:
    """Tell who sends with a group (ProducerConnection)."""
    return in_json(request, {"connectionSet": _connections(members)})


def all_producers(
    request: Command, found: tuple[int, Mapping[str, Sequence[tuple[Peer, Member, float]]]]
) -> Command:
    """Tell who sends with which group (ProducerTableInfo)."""
    now, groups = found
    body = {
        name: [
            {
                "clientId": member.client_id,
                "language": member.language,
                "lastUpdateTimestamp": now - round(seconds * 1000),
                "remoteIP": f"/{connection.peer}",
                "version": member.version,
            }
            for connection, member, seconds in members
        ]
        for name, members in groups.items()
    }
    return in_json(request, {"data": body})


def _connections(members: Iterable[tuple[Peer, Member]]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": connection.peer,
            "clientId": member.client_id,
            "language": member.language,
            "version": member.version,
        }
        for connection, member in members
    ]


def subscription_data(told: Subscription) -> dict[str, Any]:
    """Return a subscription as a broker tells it (SubscriptionData)."""
    return {
        "classFilterMode": False,
        "codeSet": [] if told.codes is None else told.codes.tolist(),
        "expressionType": told.kind,
        "subString": told.expression,
        "subVersion": told.version,
        "tagsSet": tags_in(told.expression) if told.kind == TAG else [],
        "topic": told.topic,
    }
