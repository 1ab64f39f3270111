"""Where the log of a store ends, as far as a reader may trust it.

Three cases (docs/format.md, "Start, recovery"):

- A store that was closed cleanly, or that a broker has open: up to what its files hold; a queue
  entry is written after its record, so what the queues name is there.
- A store whose broker was killed: the log is walked from where the checkpoint vouches for it. The
  first record that is not whole ends it, unless it lies before what is known as flushed: that is
  damage, and the log goes on behind it. A block that was not published ends it too, unless the
  checkpoint knows its time: it never covers one that is still to be published.
- A DLedger log: up to the entry that is known as committed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.base import Files, join
from rmqstore_spark.files.directory import DLedgerLog
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.dledger import (
    INDEX_UNIT_SIZE,
    decode_entry_headers,
    decode_index_unit,
    index_unit_position,
    parse_committed_index,
)
from rmqstore_spark.layout.record.format import (
    MAX_RECORD_SIZE,
    MIN_RECORD_SIZE,
    Records,
    decode_records,
)
from rmqstore_spark.reader.log.commitlog import DLEDGER_LEAD, CommitLog
from rmqstore_spark.reader.log.walk import Flaw, walk_log

__all__ = ["committed_end", "intact_end", "is_locked", "record_head"]

_log = logging.getLogger(__name__)

_GRACE_MS: Final = 3_000  # a broker distrusts the last three seconds before its checkpoint
_F_OFD_GETLK: Final = 36


def is_locked(files: Files, path: str) -> bool:
    """Whether a process of this machine holds a store's lock, as a running broker does.

    Always False where the files are on another machine: nothing can be known there.
    """
    if not files.is_local:
        return False
    try:
        # Without waiting: what is called `lock` there may be a pipe.
        fd = os.open(join(path, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # Asked as an open file description of its own, so that a lock of this very process counts.
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(fd, _F_OFD_GETLK, asked)
        return int(struct.unpack("hhqqi4x", answer)[0]) != fcntl.F_UNLCK
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
            return False
        raise
    finally:
        os.close(fd)


def committed_end(files: Files, dledger: DLedgerLog, data: Segments) -> int:
    """Log offset one past the last committed entry of a DLedger log.

    Raises:
        CorruptStoreError: neither the checkpoint nor its `.bak` says which entry that is, the
            index does not know it, or the entry is not where the index says.
    """
    if not len(data):
        return 0
    committed = _committed_index(files, dledger, data)
    if committed < 0:
        return data.min_offset
    at = index_unit_position(committed)
    units = Segments.load(files, [dledger.index])
    if not units.covers([at], [INDEX_UNIT_SIZE])[0]:
        raise CorruptStoreError(
            f"the DLedger index ({units.min_offset} to {units.end_offset}) does not hold the unit "
            f"of entry {committed}, the last committed one",
            file=dledger.index,
            offset=at,
            remedy="Copy the store again, index included.",
        )
    raw = units.read(at, INDEX_UNIT_SIZE)
    unit = decode_index_unit(raw, committed, file=dledger.index)
    if not data.min_offset <= unit.end <= data.end_offset:
        raise CorruptStoreError(
            f"entry {committed}, the last committed one, is said to end at {unit.end}, outside "
            f"the log ({data.min_offset} to {data.end_offset})",
            file=dledger.index,
            offset=at,
        )
    segment = data.locate(unit.position)
    head = data.read(unit.position, DLEDGER_LEAD)
    headers, valid = decode_entry_headers(head, np.zeros(1, np.int64))
    stated = tuple(int(headers[name][0]) for name in ("position", "size", "index"))
    if not valid[0] or stated != (unit.position, unit.size, committed):
        raise CorruptStoreError(
            f"the header of entry {committed}, the last committed one, does not agree with its "
            f"unit in {dledger.index}, so that the log's end is not known",
            file=segment.path,
            offset=unit.position - segment.start,
        )
    return unit.end


def _committed_index(files: Files, dledger: DLedgerLog, data: Segments) -> int:
    damage: CorruptStoreError | None = None
    for path in (dledger.checkpoint, f"{dledger.checkpoint}.bak"):
        try:
            text = files.read(path, 0, 4096).decode("utf-8", "replace")
            index = parse_committed_index(text, file=path)
        except FileNotFoundError:
            continue
        except CorruptStoreError as error:
            damage = damage or error
            continue
        if damage is not None:
            _log.warning(
                "%s Its older copy %s is used: newer entries may be missing.", damage, path
            )
        return index
    if damage is None and not any(data.read(data.min_offset, DLEDGER_LEAD)):
        return -1  # a member that has just been set up
    raise damage or CorruptStoreError(
        "there is no DLedger checkpoint, and nothing else tells which entries are final",
        file=dledger.checkpoint,
        remedy="Copy the store again, checkpoint included.",
    )


def record_head(log: CommitLog, offset: int) -> Records | None:
    """The record at a place, its CRC unchecked; None where no whole one stands there."""
    found = log.segment_at(offset)
    if found is None or found.end - offset < MIN_RECORD_SIZE:
        return None
    size = int.from_bytes(log.read(offset, 4), "big", signed=True)
    if not MIN_RECORD_SIZE <= size <= min(found.end - offset, MAX_RECORD_SIZE):
        return None
    raw = np.frombuffer(log.read(offset, size), np.uint8)
    record = decode_records(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))
    if record.status[0] != 0 or record.physical_offset[0] != offset:
        return None
    return record


def intact_end(log: CommitLog, checkpoint: Checkpoint | None) -> int:
    """Where the log of a killed broker's store ends.

    Reads from the newest segment that the checkpoint vouches for; without one, the whole log.
    """
    flushed = checkpoint.physic_msg_timestamp if checkpoint else 0
    vouched = min(flushed, checkpoint.logics_msg_timestamp) - _GRACE_MS if checkpoint else 0
    start = log.min_offset
    for segment in log.segments():
        first = record_head(log, segment.start + segment.lead)
        if first is not None and int(first.store_timestamp[0]) <= vouched:
            start = segment.start
    newest = 0
    end = start
    for item in walk_log(log, start, log.file_end, is_damage=lambda f: _is_covered(f, flushed)):
        if isinstance(item, Flaw):
            if item.resumes is None or _past_flushed(log, item, newest, flushed):
                return item.offset
            end = item.resumes
        else:
            newest = int(item.records.store_timestamp[-1])
            end = item.end
    return end


def _is_covered(flaw: Flaw, flushed: int) -> bool:
    return flaw.unpublished is not None and flaw.unpublished <= flushed


def _past_flushed(log: CommitLog, flaw: Flaw, newest: int, flushed: int) -> bool:
    """Whether a flaw lies past the message that the checkpoint knows as flushed.

    That message's own time is `flushed`. Where the record in question does not tell its own, it is
    past that message if one before it already is, or if one before it is of that very time and the
    next one behind it later: then nothing says that what is lost was flushed.
    """
    if flaw.unpublished is not None:
        return flaw.unpublished > flushed
    record = record_head(log, flaw.offset)
    if record is not None:
        return int(record.store_timestamp[0]) > flushed
    behind = record_head(log, flaw.resumes) if flaw.resumes is not None else None
    if newest == flushed and behind is not None:
        return int(behind.store_timestamp[0]) > flushed
    return newest > flushed
