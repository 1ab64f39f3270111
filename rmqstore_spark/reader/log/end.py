"""Finds the end of a store's log, up to which a reader can trust it.

There are three cases (docs/format.md, "Start, recovery"):

- The store was closed cleanly, or a broker has it open. The log ends at the end of its files. A
  queue entry is written after its record, so the log holds whatever the queues name.
- The broker was killed. The log is walked from the newest file that the checkpoint vouches for. It
  ends at the first record that is not whole. If that record is known to have been flushed, this is
  damage instead, and the log continues after it. What a store process had flushed, and what is
  missing at the end, is not cut off: reading it reports the error. An unpublished block also ends
  the log, unless the checkpoint covers its time: a checkpoint never covers a block that is not
  published yet.
- The log is a DLedger log. It ends after the last entry that is known to be committed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, StoreAccessError
from rmqstore_spark.files.directory import DLedgerLog, StoreDirectory
from rmqstore_spark.files.names import FLUSH_MARK_NAME, OWN_FOLDER
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.base import Files, join
from rmqstore_spark.layout.checkpoint import FLUSH_MARK_SIZE, GRACE_MS, Checkpoint, FlushMark
from rmqstore_spark.layout.dledger import (
    INDEX_UNIT_SIZE,
    decode_entry_headers,
    decode_index_unit,
    index_unit_position,
    parse_committed_index,
)
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.record.format import Records, check_crcs, decode_records
from rmqstore_spark.reader.log.commitlog import DLEDGER_LEAD, CommitLog
from rmqstore_spark.reader.log.walk import Flaw, walk_log

_log = logging.getLogger(__name__)

_F_OFD_GETLK: Final = 36
_READINGS: Final = 5
"""How many times a text is read that a member may be writing."""


def is_locked(files: Files, path: str) -> bool:
    """Return whether a process holds a store's lock, as a running broker does.

    Seen are locks on this machine, and those that a store process sees on its machine. Otherwise
    it is False.
    """
    if not files.is_local:
        return bool(getattr(files, "is_written", False))
    try:
        # O_NONBLOCK: `lock` may be a pipe, and opening it would wait.
        fd = os.open(join(path, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # Through a separate open file description, so that a lock of this process counts too.
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(fd, _F_OFD_GETLK, asked)
        return int(struct.unpack("hhqqi4x", answer)[0]) != fcntl.F_UNLCK
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
            return False
        raise
    finally:
        os.close(fd)


def load_log(directory: StoreDirectory) -> tuple[CommitLog, DLedgerLog | None]:
    """Return the log of a store, and the place of its DLedger log, if it has one.

    The log ends with its files; a DLedger log with its last committed entry.

    Raises:
        CorruptStoreError: see `committed_end`.
    """
    plain, dledger = directory.logs()
    if dledger is None:
        return CommitLog(plain), None
    data = Segments.load(directory.files, [dledger.data])
    return CommitLog(plain, data, committed_end(directory.files, dledger, data)), dledger


def committed_end(files: Files, dledger: DLedgerLog, data: Segments) -> int:
    """Return the log offset one past the last committed entry of a DLedger log.

    Raises:
        CorruptStoreError: neither the checkpoint nor its `.bak` names the entry, the index does not
            hold it, or the entry is not where the index says.
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
            f"the DLedger index ({units.min_offset} to {units.end_offset}) has no unit for the "
            f"last committed entry ({committed})",
            file=dledger.index,
            offset=at,
            remedy="Copy the store again, with its index.",
        )
    raw = units.read(at, INDEX_UNIT_SIZE)
    unit = decode_index_unit(raw, committed, file=dledger.index)
    if not data.min_offset <= unit.end <= data.end_offset:
        raise CorruptStoreError(
            f"the last committed entry ({committed}) ends at {unit.end} by its index unit, outside "
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
            f"the end of the log is unknown: the header of the last committed entry ({committed}) "
            f"does not match its unit in {dledger.index}",
            file=segment.path,
            offset=unit.position - segment.start,
        )
    return unit.end


def _committed_index(files: Files, dledger: DLedgerLog, data: Segments) -> int:
    damage: CorruptStoreError | None = None
    for path in (dledger.checkpoint, f"{dledger.checkpoint}.bak"):
        try:
            index = _index_in(files, path)
        except FileNotFoundError:
            continue
        except CorruptStoreError as error:
            damage = damage or error
            continue
        if damage is not None:
            _log.warning("%s Using its older copy %s: newer entries may be missing.", damage, path)
        return index
    if damage is None and not any(data.read(data.min_offset, DLEDGER_LEAD)):
        return -1  # a new member without entries
    raise damage or CorruptStoreError(
        "the DLedger checkpoint is missing, and only it shows which entries are committed",
        file=dledger.checkpoint,
        remedy="Copy the store again, with its checkpoint.",
    )


def _index_in(files: Files, path: str) -> int:
    for left in reversed(range(_READINGS)):
        text = files.read(path, 0, 4096).decode("utf-8", "replace")
        try:
            return parse_committed_index(text, file=path)
        except CorruptStoreError:
            if not left:
                raise
    raise AssertionError("a file is read once at least")


def record_head(log: CommitLog, offset: int) -> Records | None:
    """Read the record at a physical offset, without a CRC check; None if no whole one is there."""
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


def stated_place(log: CommitLog, offset: int) -> int | None:
    """Return the place that the record at a segment's beginning states, if it is another one.

    No crash leaves that, because a page that was not written holds zeros: the file is a copy of
    another segment. Return None if the record states its own place, is not whole, or is not the
    first of a segment.
    """
    segment = log.segment_at(offset)
    if segment is None or segment.start != offset:
        return None
    size = int.from_bytes(log.read(offset, 4), "big", signed=True)
    if not MIN_RECORD_SIZE <= size <= min(segment.end - offset, MAX_RECORD_SIZE):
        return None
    raw = np.frombuffer(log.read(offset, size), np.uint8)
    record = decode_records(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))
    record = check_crcs(record, bodies=True)
    stated = int(record.physical_offset[0])
    return stated if record.status[0] == 0 and stated != offset else None


def intact_end(log: CommitLog, checkpoint: Checkpoint | None) -> int:
    """Find the end of the log of a killed broker's store.

    Reads from the newest segment that the checkpoint vouches for. Without a checkpoint, reads the
    whole log.
    """
    flushed = checkpoint.physic_msg_timestamp if checkpoint else 0
    vouched = min(flushed, checkpoint.logics_msg_timestamp) - GRACE_MS if checkpoint else 0
    start = log.min_offset
    for segment in log.segments():
        first = record_head(log, segment.start + segment.lead)
        if first is not None and int(first.store_timestamp[0]) <= vouched:
            start = segment.start
    newest = 0
    end = start

    def is_damage(flaw: Flaw) -> bool:
        return _is_covered(flaw, newest, flushed)

    for item in walk_log(log, start, log.file_end, is_damage=is_damage):
        if isinstance(item, Flaw):
            if item.resumes is None or _past_flushed(log, item, newest, flushed):
                return item.offset
            end = item.resumes
        else:
            newest = int(item.records.store_timestamp[-1])
            end = item.end
    return end


def flushed_end(files: Files, path: str) -> int:
    """Return the physical offset up to which a store process has flushed the log of a store.

    Return 0 if nothing tells it: a broker's store has no flush mark. If a process writes to the
    store, read this before the end of the log.
    """
    try:
        data = files.read(join(path, OWN_FOLDER, FLUSH_MARK_NAME), 0, FLUSH_MARK_SIZE + 1)
    except FileNotFoundError:
        return 0
    except StoreAccessError as error:
        _log.warning("Whether the end of the log is missing cannot be told: %s", error)
        return 0
    mark = FlushMark.decode(data)
    return 0 if mark is None else mark.offset


def _is_covered(flaw: Flaw, newest: int, flushed: int) -> bool:
    """Return whether what looks like an unpublished block was published, and flushed.

    If a power cut has torn its header, the time of the record before it, `newest`, tells.
    """
    if flaw.unpublished is None:
        return False
    return flaw.unpublished <= flushed if flaw.unpublished else newest < flushed


def _past_flushed(log: CommitLog, flaw: Flaw, newest: int, flushed: int) -> bool:
    """Return whether a flaw lies past the last message that the checkpoint knows to be flushed.

    That message was stored at the time `flushed`. If the flaw hides the time of its record, the
    neighbors decide. The flaw is past the message if a record before it was stored later than
    `flushed`. It also is if the record before it was stored at exactly `flushed`, and the next one
    later: then nothing shows that the lost bytes were flushed.
    """
    if flaw.unpublished is not None:
        return not _is_covered(flaw, newest, flushed)
    record = record_head(log, flaw.offset)
    if record is not None:
        return int(record.store_timestamp[0]) > flushed
    behind = record_head(log, flaw.resumes) if flaw.resumes is not None else None
    if newest == flushed and behind is not None:
        return int(behind.store_timestamp[0]) > flushed
    return newest > flushed
