"""What producers send, one message or a batch: its properties, and the messages of a batch.

Upstream: SendMessageProcessor, MessageDecoder.decodeMessages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    MAX_PROPERTIES_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_SEPARATOR,
    PROPERTY_TRAN_MSG,
    PROPERTY_WAIT,
)
from rmqstore_spark.layout.spans import I4, U1, Spans

_SEPARATOR: Final = PROPERTY_SEPARATOR.encode()
_LEAST_ENTRY: Final = 22
_CLUSTER: Final[tuple[str, ...]] = (PROPERTY_CLUSTER + NAME_VALUE_SEPARATOR,)
_WAIT: Final = (PROPERTY_WAIT + NAME_VALUE_SEPARATOR,)
_DELAY: Final = (PROPERTY_DELAY + NAME_VALUE_SEPARATOR,)


@dataclass(slots=True)
class Send:
    """What a producer wants stored: a message, or a batch; and what has become of it.

    Attributes:
        topic, queue_id: where it goes; a negative queueId is for the broker to choose. Once it is
            accepted, those that it gets.
        default_topic, queue_nums: for a topic that does not exist.
        sys_flag: without the bits for hosts.
        born: milliseconds.
        flag: the user's.
        properties: as text; those of a batch are for each of its messages.
        reconsume_times: how often the message was consumed before.
        most_times: how often it may be; -1 if the request does not say.
        body: of the message; or those of a batch, with their properties.
        peer: address of the producer.
        told_queue: the queue that the answer names.
        stored_properties: of a single message, as they are stored.
        is_half: whether it waits for the end of a transaction.
        data: the records of a batch.
        rows: how many messages it has.
        status: of the put; None until it is stored.
        remark: of the put.
        msg_ids: of its messages, with commas between.
        offset: of its first message, in its queue.
        refusal: why it was not stored.
        is_held: whether nothing was done, because a commit of a batch is in the way.
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
    body: bytes
    peer: str = ""
    told_queue: int = 0
    stored_properties: bytes = b""
    is_half: bool = False
    data: U1 | None = None
    rows: int = 1
    status: PutStatus | None = None
    remark: str = ""
    msg_ids: str = ""
    offset: int = 0
    refusal: Refusal | None = None
    is_held: bool = False


def is_transactional(properties: str) -> bool:
    """Return whether a message with these properties becomes a half message."""
    lead = PROPERTY_TRAN_MSG + NAME_VALUE_SEPARATOR
    parts = properties.split(PROPERTY_SEPARATOR)
    values = [part[len(lead) :] for part in parts if part.startswith(lead)]
    return bool(values) and values[-1].lower() == "true"


def is_delayed(properties: str) -> bool:
    """Return whether a message with these properties is stored among the delayed ones."""
    parts = properties.split(PROPERTY_SEPARATOR)
    return any(part.startswith(_DELAY) and part[len(_DELAY[0]) :] != "0" for part in parts)


def stored_properties(
    text: str, cluster: str, most_body: int, *, is_dead: bool, is_half: bool = False
) -> bytes:
    """Return the properties of a single message as they are stored.

    RocketMQ drops WAIT, but not from a message that waits: a half message, or one with a delay.

    Args:
        text: as its request has them.
        cluster: name of the broker's cluster.
        most_body: most bytes of a body, for the error.
        is_dead: whether it goes to the dead letters, at once whatever its delay.
        is_half: whether it becomes a half message.

    Raises:
        Refusal: they are too long.
    """
    given = text.split(PROPERTY_SEPARATOR)
    waits = is_half or (not is_dead and PROPERTY_DELAY in text and any(map(_is_delay, given)))
    leads = _CLUSTER if waits else _CLUSTER + _WAIT
    if is_dead:
        leads += _DELAY
    parts = [part for part in given if part and not part.startswith(leads)]
    parts.append(f"{PROPERTY_CLUSTER}{NAME_VALUE_SEPARATOR}{cluster}")
    found = PROPERTY_SEPARATOR.join(parts).encode("utf-8", "replace")
    if len(found) > MAX_PROPERTIES_LENGTH:
        raise Refusal(Reason.ILLEGAL_MESSAGE, limits_text(most_body))
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
        Refusal: it is none, or has too many messages.
    """
    data, room = np.frombuffer(body, np.uint8), min(most, len(body) // _LEAST_ENTRY)
    starts, lengths = np.empty((2, room), np.int64), np.empty((3, room), np.int32)
    count, broken = kernel.active.split_batch(data, starts[0], lengths[0], starts[1], *lengths[1:])
    if broken >= 0 or not count:
        raise Refusal(
            Reason.ILLEGAL_MESSAGE,
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
