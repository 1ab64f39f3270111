"""Reads the requests of producers: messages to send, one or a batch.

Upstream: SendMessageRequestHeader, SendMessageRequestHeaderV2, MessageDecoder.decodeMessages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    MAX_PROPERTIES_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_SEPARATOR,
    PROPERTY_TRAN_MSG,
    PROPERTY_WAIT,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.spans import I4, U1, Spans
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import Fields

__all__ = [
    *("Batch", "SendHeader", "is_transactional", "joined_properties"),
    *("limits_text", "named_topic"),
    *("read_header", "split_batch", "stored_properties"),
]

_NAMES: Final = (
    "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
    "flag", "properties", "reconsumeTimes", "maxReconsumeTimes",
)  # fmt: skip
_SHORT: Final = ("b", "c", "d", "e", "f", "g", "h", "i", "j", "l")
_SEPARATOR: Final = PROPERTY_SEPARATOR.encode()
_LONG_NAMED: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
_INT: Final = 1 << 31
_LONG: Final = 1 << 63
_HOST_BITS: Final = BORNHOST_V6_FLAG | STOREHOST_V6_FLAG
_RECONSUMES_SINCE: Final = 121
"""The version (3.4.9) from which on `maxReconsumeTimes` counts."""
_NOT_GIVEN: Final = -1
_LEAST_ENTRY: Final = 22


@dataclass(slots=True)
class SendHeader:
    """What a request says about its messages.

    Attributes:
        topic, queue_id: where they go; a negative queueId is for the broker to choose.
        default_topic, queue_nums: for a topic that does not exist.
        sys_flag: without the bits for hosts.
        born: milliseconds.
        flag: the user's.
        properties: as text.
        reconsume_times: how often the message was consumed before.
        most_times: how often it may be; -1 if the request does not say.
    """

    topic: str
    queue_id: int
    default_topic: str
    queue_nums: int
    sys_flag: int
    born: int
    flag: int
    properties: str
    reconsume_times: int
    most_times: int


def read_header(request: Command) -> SendHeader:
    """Read the header of a request to send, with long names or short ones.

    Raises:
        RemotingError: there is no topic, or a field is missing or no number.
    """
    names = _NAMES if request.code in _LONG_NAMED else _SHORT
    topic, default_topic, queue_nums, queue_id, sys_flag, born, flag, properties, times, most = (
        names
    )
    fields, ext = Fields(request.ext), request.ext
    if not ext.get(topic, "").strip():
        raise RemotingError(ResponseCode.SYSTEM_ERROR, "The specified topic is blank.")
    most_times = fields.long(most, -_INT, _INT - 1, _NOT_GIVEN)
    return SendHeader(
        ext[topic],
        fields.long(queue_id, -_INT, _INT - 1),
        ext.get(default_topic, ""),
        fields.long(queue_nums, -_INT, _INT - 1, 0),
        fields.long(sys_flag, -_INT, _INT - 1) & ~_HOST_BITS,
        fields.long(born, -_LONG, _LONG - 1),
        fields.long(flag, -_INT, _INT - 1),
        ext.get(properties, ""),
        fields.long(times, 0, _INT - 1, 0),
        most_times if request.version >= _RECONSUMES_SINCE else _NOT_GIVEN,
    )


def named_topic(request: Command) -> str:
    """Return the topic that a request to send names; empty if it names none."""
    return request.ext.get((_NAMES if request.code in _LONG_NAMED else _SHORT)[0], "")


def is_transactional(properties: str) -> bool:
    """Return whether a message with these properties becomes a half message."""
    if PROPERTY_TRAN_MSG not in properties:
        return False
    lead = PROPERTY_TRAN_MSG + NAME_VALUE_SEPARATOR
    parts = properties.split(PROPERTY_SEPARATOR)
    values = [part[len(lead) :] for part in parts if part.startswith(lead)]
    return bool(values) and values[-1].lower() == "true"


def stored_properties(
    header: SendHeader, cluster: str, most_body: int, *, is_dead: bool, is_half: bool = False
) -> bytes:
    """Return the properties of a single message as they are stored.

    RocketMQ drops WAIT, but not from a message that waits: a half message, or one with a delay.

    Args:
        header: of its request.
        cluster: name of the broker's cluster.
        most_body: most bytes of a body, for the error.
        is_dead: whether it goes to the dead letters, at once whatever its delay.
        is_half: whether it becomes a half message.

    Raises:
        RemotingError: they are too long.
    """
    given = [part for part in header.properties.split(PROPERTY_SEPARATOR) if part]
    waits = is_half or (
        not is_dead and PROPERTY_DELAY in header.properties and any(map(_is_delay, given))
    )
    dropped = [PROPERTY_CLUSTER]
    dropped += [] if waits else [PROPERTY_WAIT]
    dropped += [PROPERTY_DELAY] if is_dead else []
    leads = tuple(name + NAME_VALUE_SEPARATOR for name in dropped)
    parts = [part for part in given if not part.startswith(leads)]
    parts.append(f"{PROPERTY_CLUSTER}{NAME_VALUE_SEPARATOR}{cluster}")
    found = PROPERTY_SEPARATOR.join(parts).encode("utf-8", "replace")
    if len(found) > MAX_PROPERTIES_LENGTH:
        raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, limits_text(most_body))
    return found


def _is_delay(part: str) -> bool:
    """Return whether a property lets its message wait; level 0 does not."""
    name, _, level = part.partition(NAME_VALUE_SEPARATOR)
    return name == PROPERTY_DELAY and level != "0"


@dataclass(frozen=True)
class Batch:
    """The n messages of a batch.

    Attributes:
        bodies, properties: n spans.
        flags: n.
    """

    bodies: Spans
    properties: Spans
    flags: I4


def split_batch(body: bytes, most: int) -> Batch:
    """Find the messages in the body of a batch.

    Args:
        body: the body.
        most: most messages.

    Raises:
        RemotingError: it is none, or has too many messages.
    """
    data, room = np.frombuffer(body, np.uint8), min(most, len(body) // _LEAST_ENTRY)
    starts, lengths = np.empty((2, room), np.int64), np.empty((3, room), np.int32)
    count, broken = kernel.active.split_batch(data, starts[0], lengths[0], starts[1], *lengths[1:])
    if broken >= 0 or not count:
        raise RemotingError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the body is not a batch of messages, or has too many: see its byte {max(broken, 0)}",
        )
    bodies, properties = (
        Spans(data, start[:count], length[:count])
        for start, length in zip(starts, lengths, strict=False)
    )
    return Batch(bodies, properties, lengths[2, :count])


def joined_properties(own: Spans, shared: bytes) -> tuple[I4, U1]:
    """Append the properties that a whole batch shares to those of its n messages.

    Args:
        own: n, closed by separators or not.
        shared: at least one property, without a separator at the end.

    Returns:
        n + 1 offsets, and the bytes.
    """
    end = len(own.buffer)
    buffer = np.concatenate([own.buffer, np.frombuffer(_SEPARATOR + shared, np.uint8)])
    lengths = own.lengths.copy()
    while (closed := (lengths > 0) & (buffer[own.starts + lengths - 1] == _SEPARATOR[0])).any():
        lengths -= closed
    # Of each message two spans: its own, and what follows, which needs a separator after something.
    starts, sizes = np.empty((len(own), 2), np.int64), np.empty((len(own), 2), np.int32)
    starts[:, 0], sizes[:, 0] = own.starts, lengths
    starts[:, 1], sizes[:, 1] = end + (lengths == 0), len(shared) + (lengths > 0)
    offsets, data = Spans(buffer, starts.reshape(-1), sizes.reshape(-1)).texts()
    return offsets[::2].copy(), data


def limits_text(max_message_size: int) -> str:
    """Return what RocketMQ says of a message that is too large."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. msg body length "
        f"limit {max_message_size}B, msg properties length limit 32KB."
    )
