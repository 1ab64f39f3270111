"""REAL_TOPIC and REAL_QID: the queue of a message that waits in another one.

Delayed messages and half messages wait like that (upstream: CommitLog.asyncPutMessage,
TransactionalMessageBridge.parseHalfMessageInner).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.constants import (
    PROPERTY_CRC32,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    is_writable_topic,
)
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, Spans, binary_array

SEPARATOR: Final = b"\x02"
_LEADS: Final = tuple(name.encode() + b"\x01" for name in (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID))
_CRC_LEAD: Final = f"{PROPERTY_CRC32}\x01".encode()


@dataclass(frozen=True)
class Addressees:
    """The queues for which n messages wait.

    Attributes:
        topics: n names.
        queue_ids: n.
        known: n, whether REAL_TOPIC and REAL_QID name a queue.
        properties: n, without the CRC of the whole record that RocketMQ 5 can append: a copy has
            another one.
    """

    topics: pa.BinaryArray
    queue_ids: I4
    known: npt.NDArray[np.bool_]
    properties: pa.BinaryArray


def addressees(records: Records, most_queues: int) -> Addressees:
    """Return the queues for which messages wait.

    Args:
        records: n sound records.
        most_queues: the most queues that a topic may have.
    """
    found = find_properties(
        records.properties, (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID, PROPERTY_CRC32)
    )
    topics = binary_array(found[PROPERTY_REAL_TOPIC])
    queue_ids = _queue_ids(found[PROPERTY_REAL_QID], most_queues)
    properties = _without_crc(binary_array(records.properties), found[PROPERTY_CRC32].lengths >= 0)
    return Addressees(topics, queue_ids, (queue_ids >= 0) & _are_topics(topics), properties)


def open_ended(records: Records) -> pa.BinaryArray:
    """Return the properties of records without a separator at their end."""
    spans = records.properties
    ends = spans.starts + np.maximum(spans.lengths - 1, 0)
    closed = (spans.lengths > 0) & (spans.buffer[ends] == SEPARATOR[0])
    return binary_array(
        Spans(spans.buffer, spans.starts, (spans.lengths - closed).astype(np.int32))
    )


def with_addressee(records: Records, properties: pa.BinaryArray) -> pa.BinaryArray:
    """Return properties with the topic and the queue of their records at the end.

    Args:
        records: n records.
        properties: n, without a separator at their end, and without REAL_TOPIC and REAL_QID.
    """
    real_qid = pa.array(records.queue_id).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(
            pc.if_else(pc.equal(pc.binary_length(properties), 0), None, properties),
            _LEADS[0],
            SEPARATOR,
            null_handling="skip",
        ),
        pc.binary_join_element_wise(binary_array(records.topic), _LEADS[1], SEPARATOR),
        real_qid,
        b"",
    )


def without_addressee(text: bytes) -> bytes:
    """Return properties without REAL_TOPIC and REAL_QID."""
    parts = text.split(SEPARATOR)
    return SEPARATOR.join(part for part in parts if part and not part.startswith(_LEADS))


def _queue_ids(texts: Spans, most_queues: int) -> I4:
    """Return the numbers of queues; -1 for what is none."""
    coded = binary_array(texts).dictionary_encode()
    numbers = [_queue_id(text, most_queues) for text in coded.dictionary.to_pylist()]
    index = coded.indices.fill_null(len(numbers)).to_numpy()
    found: I4 = np.array([*numbers, -1], np.int32)[index]
    return found


def _queue_id(text: bytes, most_queues: int) -> int:
    number = int(text) if text.isdigit() and len(text) <= 5 else -1
    return number if number < most_queues else -1


def _are_topics(names: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    coded = names.dictionary_encode()
    good = [
        is_writable_topic(name.decode("utf-8", "replace")) for name in coded.dictionary.to_pylist()
    ]
    found: npt.NDArray[np.bool_] = np.array([*good, False], np.bool_)[
        coded.indices.fill_null(len(good)).to_numpy()
    ]
    return found


def _without_crc(properties: pa.BinaryArray, has_crc: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    if not has_crc.any():
        return properties
    texts = properties.to_pylist()
    for row in np.flatnonzero(has_crc).tolist():
        parts = [part for part in texts[row].split(SEPARATOR) if not part.startswith(_CRC_LEAD)]
        texts[row] = SEPARATOR.join(parts)
    return pa.array(texts, pa.binary())
