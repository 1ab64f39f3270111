"""Look at the records before some offsets: they tell whether a queue is still the same.

Records of the same size at the same place can be different messages: those of a store that was
wiped and filled again, of a topic that was created again, of a fork. The bytes around the body tell
them apart, without reading it: times of birth and storage, hosts, the CRC of the body, topic and
properties (docs/format.md, "A CommitLog record"). A copy of a log has the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.fields import (
    BODY_LENGTH_AT,
    LONGEST_HEAD_SIZE,
    MAX_RECORD_SIZE,
    SYS_FLAG_AT,
    V6_EXTRA,
)
from rmqstore_spark.reader.queue import Queue, read_entry_bytes

if TYPE_CHECKING:
    from rmqstore_spark.reader.log.commitlog import CommitLog

UNKNOWN: Final = -1
DEAD: Final = -2
_WHOLE: Final = 4096
"""Bytes of a record that are read at once: most records are smaller."""
_GONE: Final = (SegmentExpiredError, CorruptStoreError)

_DIGITS: Final = 12
_START: Final = struct.Struct(f">ii{SYS_FLAG_AT - 8}xi")  # totalSize, magicCode, sysFlag


def _body(head: bytes, size: int) -> tuple[int, int] | None:
    """Return where the body of a record begins and ends; None if no record begins so."""
    if len(head) < min(LONGEST_HEAD_SIZE, size) or len(head) < BODY_LENGTH_AT + 4:
        return None
    total, magic, flags = _START.unpack_from(head)
    if total != size or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    at = BODY_LENGTH_AT
    at += V6_EXTRA * (bool(flags & BORNHOST_V6_FLAG) + bool(flags & STOREHOST_V6_FLAG))
    if at + 4 > len(head):
        return None
    length = int.from_bytes(head[at : at + 4], "big", signed=True)
    begin = at + 4
    return (begin, begin + length) if 0 <= length <= size - begin else None


def body_end(head: bytes, size: int) -> int | None:
    """Return where the body of a record ends, counted from the record's begin.

    Args:
        head: the first LONGEST_HEAD_SIZE bytes of the record, or all of a shorter one.
        size: bytes of the record.

    Returns:
        The place; None if no record begins here.
    """
    body = _body(head, size)
    return None if body is None else body[1]


def fingerprint(head: bytes, tail: bytes, size: int) -> str:
    """Return the fingerprint of a record: 12 hex digits of SHA-256 of all but its body.

    Args:
        head: the first LONGEST_HEAD_SIZE bytes of the record or more, or all of a shorter one.
        tail: what follows the body (from `body_end` on).
        size: bytes of the record.

    Returns:
        The fingerprint; "" if no record begins here, as when it is damaged.
    """
    body = _body(head, size)
    if body is None or len(tail) != size - body[1]:
        return ""
    return hashlib.sha256(head[: body[0]] + tail).hexdigest()[:_DIGITS]


class Before(NamedTuple):
    """The record before an offset.

    Attributes:
        physical: where it is in the log; UNKNOWN if it has expired, DEAD if the entry is damaged.
        fingerprint: see `fingerprint`; "" if unknown.
    """

    physical: int
    fingerprint: str = ""


NOTHING: Final = Before(UNKNOWN)


def look_before(log: CommitLog, wanted: Sequence[tuple[Queue, int]]) -> list[Before]:
    """Look at the records before some offsets, in as few requests as possible.

    Args:
        log: the log of the queues.
        wanted: n queues of one store, and an offset in each, at most one past its end.
    """
    found = [NOTHING] * len(wanted)
    there = [n for n, (queue, offset) in enumerate(wanted) if offset > queue.first_slot]
    places: list[tuple[int, int, int]] = []
    for number, entry in zip(there, _entries([wanted[n] for n in there]), strict=True):
        if isinstance(entry, Before):
            found[number] = entry
        else:
            found[number] = Before(entry[0])
            places.append((number, *entry))
    prints = _fingerprints(log, [(physical, size) for _, physical, size in places])
    for (number, physical, _), text in zip(places, prints, strict=True):
        found[number] = Before(physical, text)
    return found


def _entries(wanted: Sequence[tuple[Queue, int]]) -> list[tuple[int, int] | Before]:
    """Read the entries before some offsets: physical offset and size, or why there is none."""
    try:
        data = read_entry_bytes([(queue, offset - 1, offset) for queue, offset in wanted])
    except _GONE:
        return [_entry_alone(queue, offset - 1) for queue, offset in wanted]
    return [_entry(queue, raw) for (queue, _), raw in zip(wanted, data, strict=True)]


def _entry_alone(queue: Queue, offset: int) -> tuple[int, int] | Before:
    try:
        return _entry(queue, queue.entry_bytes(offset, offset + 1))
    except SegmentExpiredError:
        return NOTHING
    except CorruptStoreError:
        return Before(DEAD)


def _entry(queue: Queue, raw: bytes) -> tuple[int, int] | Before:
    entry = queue.format.entry(raw)
    return (entry.physical_offset, entry.size) if entry.names_record else Before(DEAD)


def _fingerprints(log: CommitLog, places: Sequence[tuple[int, int]]) -> list[str]:
    """Return the fingerprint of the record at each place, "" for one that is gone."""
    offsets = np.array([physical for physical, _ in places], np.int64)
    sizes = np.array([min(size, MAX_RECORD_SIZE + 1) for _, size in places], np.int32)
    covered = (sizes <= MAX_RECORD_SIZE) & log.covers(offsets, sizes)
    numbers = np.flatnonzero(covered).tolist()
    heads = _read(
        log,
        [
            (places[n][0], places[n][1] if places[n][1] <= _WHOLE else LONGEST_HEAD_SIZE)
            for n in numbers
        ],
    )
    ends = [body_end(head, places[n][1]) for n, head in zip(numbers, heads, strict=True)]
    left = [
        (places[n][0] + end, places[n][1] - end)
        for n, end in zip(numbers, ends, strict=True)
        if end is not None and places[n][1] > _WHOLE
    ]
    tails = iter(_read(log, left))
    found = [""] * len(places)
    for n, head, end in zip(numbers, heads, ends, strict=True):
        size = places[n][1]
        if end is not None:
            found[n] = fingerprint(head, head[end:] if size <= _WHOLE else next(tails), size)
    return found


def _read(log: CommitLog, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read spans of the log together; nothing for those that are gone."""
    try:
        return log.read_all(spans) if spans else []
    except _GONE:
        return [_read_alone(log, *span) for span in spans]


def _read_alone(log: CommitLog, offset: int, size: int) -> bytes:
    try:
        return log.read(offset, size)
    except _GONE:
        return b""
