"""Half messages: turns messages into them, and them into what is stored when they are ended.

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC. Its topic and queue are properties until it is
committed. See docs/format.md, "Transactions" (upstream: TransactionalMessageBridge,
EndTransactionProcessor).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import BlockError
from rmqstore_spark.layout.constants import (
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PGROUP,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRAN_MSG,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_NOT_TYPE,
    is_safe_group_name,
)
from rmqstore_spark.layout.record.addressee import (
    SEPARATOR,
    Addressees,
    open_ended,
    retarget,
    with_addressee,
    without_addressee,
)
from rmqstore_spark.layout.record.block import Block, read_block
from rmqstore_spark.layout.record.delayed import has_sound_delay
from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I8, U1, Spans, array_texts, binary_array


def hold(block: Block, *, most_bytes: int) -> Block:
    """Return a block's messages as half messages.

    A property DELAY stays, and counts when the message is committed.

    Args:
        block: a client's checked block.
        most_bytes: bytes of the largest record that the log can hold.

    Raises:
        BlockError: a message has no TRAN_MSG=true or no PGROUP, a DELAY that is not a number, or
            becomes too large.
    """
    if not len(block):
        return block
    records = decode_records(block.data, block.starts, block.sizes)
    found = find_properties(
        records.properties,
        (PROPERTY_TRAN_MSG, PROPERTY_PGROUP, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID),
    )
    _require(block, _each(found[PROPERTY_TRAN_MSG], _is_true), "it has no property TRAN_MSG=true")
    _require(
        block, _each(found[PROPERTY_PGROUP], _is_group),
        "its property PGROUP is not the name of a producer group",
    )  # fmt: skip
    _require(block, has_sound_delay(records), "its DELAY is not a whole number")
    kept = open_ended(records)
    addressed = found[PROPERTY_REAL_TOPIC].lengths >= 0
    addressed |= found[PROPERTY_REAL_QID].lengths >= 0
    if addressed.any():
        # Rare: a copy of a message that waited before.
        texts = kept.to_pylist()
        for row in np.flatnonzero(addressed).tolist():
            texts[row] = without_addressee(texts[row])
        kept = pa.array(texts, pa.binary())
    properties = with_addressee(records, kept)
    sizes = pc.binary_length(properties).to_numpy()
    _require(
        block, sizes <= MAX_PROPERTIES_LENGTH,
        f"with REAL_TOPIC and REAL_QID, which a half message gets, its properties have more than "
        f"{MAX_PROPERTIES_LENGTH} bytes",
        status=PutStatus.PROPERTIES_SIZE_EXCEEDED,
    )  # fmt: skip
    data = _data(
        retarget(
            records,
            _same(TRANS_HALF_TOPIC, len(records)),
            np.zeros(len(records), np.int32),
            properties,
            store_host_v6=bool(records.store_host_v6[0]),
            transaction_type=TRANSACTION_NOT_TYPE,
        )
    )
    made = read_block(data, max_rows=len(block))
    _require(
        block, made.sizes + MAX_TOPIC_LENGTH <= most_bytes,
        "no segment has room for it once it is committed",
    )  # fmt: skip
    return made


def committed(records: Records, to: Addressees, offsets: I8, *, store_host_v6: bool) -> U1:
    """Return the messages of half messages that are committed, as records, unstamped.

    Args:
        records: n sound half messages.
        to: their topics and queues, all known.
        offsets: n, their physical offsets.
        store_host_v6: whether the records have room for an IPv6 storeHost.
    """
    return _data(
        retarget(
            records,
            to.topics,
            to.queue_ids,
            to.properties,
            store_host_v6=store_host_v6,
            prepared_offset=offsets,
            transaction_type=TRANSACTION_COMMIT_TYPE,
        )
    )


def given_up(records: Records, properties: pa.BinaryArray, *, store_host_v6: bool) -> U1:
    """Return half messages as messages of TRANS_CHECK_MAX_TIME_TOPIC, unstamped.

    Args:
        records: n sound half messages.
        properties: n, their properties without a CRC of the whole record.
        store_host_v6: whether the records have room for an IPv6 storeHost.
    """
    return _data(
        retarget(
            records,
            _same(TRANS_CHECK_MAX_TIME_TOPIC, len(records)),
            np.zeros(len(records), np.int32),
            properties,
            store_host_v6=store_host_v6,
        )
    )


def restored(record: Records, to: Addressees, checks: int) -> bytes:
    """Return a half message as its producer gets it with a check: with its own topic and queue.

    All else stays: its place in the log, its times and hosts. TRANSACTION_CHECK_TIMES is added if
    there is room (upstream: AbstractTransactionalMessageCheckListener.sendCheckMessage).

    Args:
        record: one sound half message.
        to: its topic and queue, known.
        checks: how often its producer was asked, with this time.
    """
    lead = f"{PROPERTY_CHECK_TIMES}{NAME_VALUE_SEPARATOR}".encode()
    text: bytes = to.properties[0].as_py()
    kept = [part for part in text.split(SEPARATOR) if part and not part.startswith(lead)]
    counted = SEPARATOR.join([*kept, b"%s%d" % (lead, checks)])
    properties = counted if len(counted) <= MAX_PROPERTIES_LENGTH else text
    is_v6 = bool(record.store_host_v6[0])
    made: bytes = retarget(
        record, to.topics, to.queue_ids, pa.array([properties], pa.binary()), store_host_v6=is_v6
    )[0].as_py()
    host = record.store_host(0)
    at = int(record.store_host_at[0] - record.positions[0])
    return made[:at] + host + made[at + len(host) :]


def _same(topic: str, count: int) -> pa.BinaryArray:
    return pa.repeat(pa.scalar(topic.encode(), pa.binary()), count)


def _data(records: pa.BinaryArray) -> U1:
    return array_texts(records)[1].copy()


def _is_true(text: bytes) -> bool:
    """Return whether Java's Boolean.parseBoolean takes a text for true."""
    return text.lower() == b"true"


def _is_group(text: bytes) -> bool:
    return is_safe_group_name(text.decode("utf-8", "replace"))


def _each(texts: Spans, test: Callable[[bytes], bool]) -> npt.NDArray[np.bool_]:
    """Test each text; False for one that is missing."""
    coded = binary_array(texts).dictionary_encode()
    passed = np.array([*map(test, coded.dictionary.to_pylist()), False], np.bool_)
    found: npt.NDArray[np.bool_] = passed[coded.indices.fill_null(len(passed) - 1).to_numpy()]
    return found


def _require(
    block: Block,
    good: npt.NDArray[np.bool_],
    fault: str,
    *,
    status: str = PutStatus.MESSAGE_ILLEGAL,
) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise BlockError(row, int(block.starts[row]), status, fault)
