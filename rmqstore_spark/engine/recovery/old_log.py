"""The log that a store had before it became a member of a group: `commitlog/`, which stays.

It is closed by a blank, and the group's log begins behind its last segment, so that positions go
on. All members that have such a log need the same one, byte for byte: the group does not copy it.
(Upstream: DLedgerCommitLog.recover, dividedCommitlogOffset.)
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from typing import Final

from rmqstore_spark.consensus.driver.group import OldLog
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.placement import blank_head
from rmqstore_spark.engine.recovery.log_files import look_over
from rmqstore_spark.engine.recovery.queues_and_index import RecoverySettings
from rmqstore_spark.engine.recovery.recover import recover
from rmqstore_spark.engine.tables.queue_ends import QueueEnds
from rmqstore_spark.errors import CorruptStoreError, UnsupportedStoreError
from rmqstore_spark.files.directory import DLEDGER_PREFIX, StoreDirectory
from rmqstore_spark.files.durable import (
    explained,
    make_folder,
    replace_file,
    sync_file,
    write_all,
)
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.files.names import OLD_LOG_NAME, OWN_FOLDER
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.walk import Stretch, walk_log

_log = logging.getLogger(__name__)

_DIGESTED: Final = 1 << 20
"""Bytes at the end of the old log by which it is known."""
_MOST: Final = 256


def close_old_log(store: str, settings: RecoverySettings, segment_size: int, me: str) -> OldLog:
    """Return the old log behind which the group's begins, if there is one.

    One that no group's log follows yet is recovered and closed. The caller holds the lock. If this
    is interrupted, the next start does it again.

    Args:
        store: the store directory.
        settings: for that recovery.
        segment_size: bytes of a segment of the group's log.
        me: the member's id.

    Raises:
        UnsupportedStoreError: the segments of the old log have another size, or the store is of a
            kind that can only be read.
        CorruptStoreError: the old log is damaged, or the group's does not begin behind it.
        StoreWriteError: a file could not be written or flushed.
    """
    folder = os.path.join(store, "commitlog")
    noted = os.path.join(store, OWN_FOLDER, OLD_LOG_NAME)
    if not os.path.isdir(folder):
        with explained(noted, "removed"), suppress(FileNotFoundError):
            os.unlink(noted)  # of one that was moved away
        return OldLog()
    files = look_over(folder)
    mark = _mark(noted, files.end or None)
    if not files.segment_size:
        return OldLog(mark=mark)  # of one that has expired, if there was one
    if files.segment_size != segment_size:
        raise UnsupportedStoreError(
            f"{store} has messages in its folder commitlog, in segments of {files.segment_size} "
            f"bytes, and mappedFileSizeCommitLog is {segment_size}. The group's log continues "
            "behind them: set mappedFileSizeCommitLog to their size, at all members."
        )
    found = OldLog(files.end, folder, mark)
    begin = _begin(os.path.join(store, f"{DLEDGER_PREFIX}{me}", "data"))
    if begin is None:
        # With a mark, the group's log was moved away, and comes again from the other members.
        return found if found.mark else _closed(store, folder, noted, settings, segment_size)
    if files.end != begin:
        raise CorruptStoreError(
            f"the old log in commitlog/ ends at {files.end}, and the group's begins at {begin}: "
            "files are missing, or the store was written without its group",
            file=folder,
            remedy="Restore the files of both from a copy of the store. Or move the store away, "
            "and copy commitlog/ of another member, if it has messages still, into a new one: the "
            "group gives it what came later.",
        )
    return found


def _begin(folder: str) -> int | None:
    """Return where the first file of a group's log begins; None without one."""
    with explained(folder, "read"):
        names = os.listdir(folder) if os.path.isdir(folder) else []
    return min(
        (start for name in names if (start := segment_start(name)) is not None), default=None
    )


def _mark(path: str, end: int | None) -> str:
    """Return the mark of an old log that ends here, or anywhere; "" if none was written down."""
    with explained(path, "read"):
        try:
            with open(path, "rb") as file:
                noted = file.read(_MOST).decode("ascii", "replace").split()
        except FileNotFoundError:
            return ""
    return noted[1] if len(noted) == 2 and (end is None or noted[0] == str(end)) else ""


def _closed(
    store: str, folder: str, noted: str, settings: RecoverySettings, segment_size: int
) -> OldLog:
    had_queues = os.path.isdir(os.path.join(store, "consumequeue"))
    found = recover(store, settings)
    if found.log_begin and not had_queues:
        QueueEnds(store).lack()
    found.queues.close()
    if found.indexes is not None:
        found.indexes.close()
    files_end = look_over(folder, segment_size).end
    if not files_end:
        return OldLog()
    start = files_end - segment_size
    end = _end_of_records(store, start, found.log_end)
    assert start <= end <= files_end, f"the log ends at {end}, and its files at {files_end}"
    path = os.path.join(folder, f"{start:020}")
    reach("group.before_close")
    with explained(path, "written"), open(path, "r+b") as file:
        if end < files_end:
            write_all(file.fileno(), blank_head(end, segment_size), end - start)
        begin = max(end - start - _DIGESTED, 0)
        last = os.pread(file.fileno(), end - start - begin, begin)
    sync_file(path)
    mark = f"{end}-{hashlib.sha256(last).hexdigest()[:32]}"
    reach("group.before_mark")
    make_folder(os.path.dirname(noted))
    replace_file(noted, f"{files_end} {mark}\n".encode())
    reach("group.after_mark")
    _log.warning(
        "%s becomes a member of a group: its log is closed at physical offset %d, and the group's "
        "begins at %d. All members that have an old log need the same.", store, end, files_end,
    )  # fmt: skip
    return OldLog(files_end, folder, mark)


def _end_of_records(store: str, start: int, end: int) -> int:
    """Return where the last record from an offset on ends: in a copy, the log is closed already."""
    files = LocalFiles()
    try:
        log = CommitLog(StoreDirectory(files, store).commit_log())
        for step in walk_log(log, start, end, check_crc=False, resume=False):
            if isinstance(step, Stretch):
                start = int(step.offsets[-1] + step.records.store_size[-1])
    finally:
        files.close()
    return start
