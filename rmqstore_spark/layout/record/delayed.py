"""Turns messages with a DELAY into messages of SCHEDULE_TOPIC_XXXX, in whole blocks.

Their topic and queue become properties, the level their queue. Until the store stamps them, their
tagsCode is their delay; `due_codes` adds the storeTimestamp. (Upstream: CommitLog.asyncPutMessage,
ScheduleMessageService.parseDelayLevel, DefaultMessageStore's `messageDelayLevel`.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import BlockError
from rmqstore_spark.layout.constants import (
    MAX_PROPERTIES_LENGTH,
    PROPERTY_DELAY,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
)
from rmqstore_spark.layout.record.addressee import (
    SEPARATOR,
    open_ended,
    retarget,
    with_addressee,
    without_addressee,
)
from rmqstore_spark.layout.record.block import Block, Route, read_block
from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, Spans, binary_array

_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,10}")
_INT_MAX: Final = (1 << 31) - 1
_DELAY_LEAD: Final = PROPERTY_DELAY.encode() + b"\x01"


def schedule(block: Block, delays: tuple[int, ...]) -> Block:
    """Return a block in which messages with a delay level belong to SCHEDULE_TOPIC_XXXX.

    A level above the highest counts as the highest. A level of 0 or less means no delay.

    Args:
        block: a client's checked block.
        delays: milliseconds of each level, at least one.

    Raises:
        BlockError: a DELAY is not a number, or the properties of a message would be too long.
    """
    records = decode_records(block.data, block.starts, block.sizes)
    found = find_properties(
        records.properties, (PROPERTY_DELAY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID)
    )
    given = _levels(block, found[PROPERTY_DELAY])
    rows = np.flatnonzero((given > 0) & block.queued)
    if not len(rows):
        return block
    levels = np.minimum(given[rows], len(delays))
    rewritten = (levels != given[rows]) | (found[PROPERTY_REAL_TOPIC].lengths[rows] >= 0)
    rewritten |= found[PROPERTY_REAL_QID].lengths[rows] >= 0
    chosen = records.take(rows)
    properties = _properties(chosen, levels, rewritten)
    sizes = pc.binary_length(properties).to_numpy()
    if sizes.max() > MAX_PROPERTIES_LENGTH:
        row = int(rows[int(sizes.argmax())])
        raise BlockError(
            row, int(block.starts[row]), PutStatus.PROPERTIES_SIZE_EXCEEDED,
            f"with REAL_TOPIC and REAL_QID, which a delayed message gets, its properties have more "
            f"than {MAX_PROPERTIES_LENGTH} bytes",
        )  # fmt: skip
    moved = retarget(
        chosen,
        pa.repeat(pa.scalar(SCHEDULE_TOPIC.encode(), pa.binary()), len(rows)),
        (levels - 1).astype(np.int32),
        properties,
        store_host_v6=bool(chosen.store_host_v6[0]),
    )
    made = read_block(_in_order(block, rows, moved), max_rows=len(block))
    made.tags_code[rows] = np.array(delays, np.int64)[levels - 1]
    return made


def due_codes(routes: Sequence[Route], route_of: I4, tags_code: I8, store_timestamp: int) -> I8:
    """Return the tagsCodes of records that get a storeTimestamp: due times for delayed ones.

    Args:
        routes, route_of, tags_code: those of a block that `schedule` has seen.
        store_timestamp: milliseconds.
    """
    numbers = [number for number, route in enumerate(routes) if route.topic == SCHEDULE_TOPIC]
    if not numbers:
        return tags_code
    return np.where(np.isin(route_of, numbers), tags_code + store_timestamp, tags_code)


def has_sound_delay(records: Records) -> npt.NDArray[np.bool_]:
    """Return which records have no DELAY, or one that is a number: `schedule` refuses others."""
    return _parsed(find_properties(records.properties, (PROPERTY_DELAY,))[PROPERTY_DELAY])[1]


def _parsed(texts: Spans) -> tuple[I8, npt.NDArray[np.bool_]]:
    """Return the level of each record, 0 for one without DELAY; and whether it is a number."""
    coded = binary_array(texts).dictionary_encode()
    numbers = [_number(text) for text in coded.dictionary.to_pylist()]
    levels = np.array([0 if number is None else number for number in numbers] + [0], np.int64)
    sound = np.array([number is not None for number in numbers] + [True], np.bool_)
    index = coded.indices.fill_null(len(numbers)).to_numpy()
    return levels[index], sound[index]


def _levels(block: Block, texts: Spans) -> I8:
    """Return the level of each record; 0 for one without DELAY."""
    levels, sound = _parsed(texts)
    if not sound.all():
        row = int(np.argmin(sound))
        raise BlockError(
            row, int(block.starts[row]), PutStatus.MESSAGE_ILLEGAL,
            "its DELAY is not a whole number. It must be a delay level, such as 3",
        )  # fmt: skip
    return levels


def _number(text: bytes) -> int | None:
    """Return a number as Java's Integer.parseInt reads it; None for anything else."""
    if not _NUMBER.fullmatch(text) or not ~_INT_MAX <= int(text) <= _INT_MAX:
        return None
    return int(text)


def _properties(records: Records, levels: I8, rewritten: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    """Return the records' properties with REAL_TOPIC and REAL_QID at the end."""
    kept = open_ended(records)
    if rewritten.any():
        # Rare: such a message asked for too high a level, or was delayed before.
        texts = kept.to_pylist()
        for row in np.flatnonzero(rewritten).tolist():
            texts[row] = _at_level(without_addressee(texts[row]), int(levels[row]))
        kept = pa.array(texts, pa.binary())
    return with_addressee(records, kept)


def _at_level(text: bytes, level: int) -> bytes:
    delay = _DELAY_LEAD + str(level).encode()
    parts = text.split(SEPARATOR)
    return SEPARATOR.join(delay if part.startswith(_DELAY_LEAD) else part for part in parts)


def _in_order(block: Block, rows: I8, moved: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    """Return a block's bytes with other records in some rows."""
    if len(rows) == len(block):
        merged = moved
    else:
        kept = np.setdiff1d(np.arange(len(block)), rows, assume_unique=True)
        unchanged = binary_array(Spans(block.data, block.starts[kept], block.sizes[kept]))
        order = np.argsort(np.concatenate([kept, rows]), kind="stable")
        merged = pa.concat_arrays([unchanged, moved]).take(pa.array(order))
    data = np.frombuffer(merged.buffers()[2], np.uint8)
    first, last = merged.offset, merged.offset + len(merged)
    bounds = np.frombuffer(merged.buffers()[1], np.int32)
    return data[bounds[first] : bounds[last]].copy()


DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The default `messageDelayLevel` of a broker."""

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delays(levels: str) -> tuple[int, ...]:
    """Parse a broker's `messageDelayLevel` into the milliseconds of each level.

    Raises:
        ValueError: the text is not a valid `messageDelayLevel`.
    """
    found = []
    for level in levels.split():
        if level[-1] not in _UNIT_MS or not level[:-1].isdecimal():
            raise ValueError(f"{level!r} is not a delay such as 10s, 5m, 2h or 1d")
        found.append(int(level[:-1]) * _UNIT_MS[level[-1]])
    return tuple(found)
