"""Finds where the log of a store ends, and whether a crash explains that end.

The walk starts as late as is safe (docs/format.md, "Start, recovery"): after a kill, at the newest
segment that the checkpoint vouches for; after a clean stop, at a record not far before the newest
one that a queue names. The first record that is not whole ends the log. A crash explains it if it
lies after what the checkpoint knows as flushed. If it lies before, it is damage.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import explained, sync_folder
from rmqstore_spark.files.log.log_folders import segment_start
from rmqstore_spark.layout.checkpoint import GRACE_MS, Checkpoint
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.log.walk import Flaw, walk_log

__all__ = ["LogEnd", "damage_error", "find_end", "repair_files", "unclean_start"]


_RESTORE: Final = (
    "Restore the file from a copy of the store. Without a copy, move all earlier files out of "
    "`commitlog/`: their messages are lost."
)
_CUT: Final = (
    "Copy the store, then run `rmqstore recover --cut`: it ends the log there, and keeps what "
    "follows in rmqstore/cut/ of the store."
)


@dataclass(frozen=True)
class LogEnd:
    """The result of the walk.

    Attributes:
        start: physical offset at which the walk started.
        offset: physical offset at which the log ends.
        cause: what ends it there; "" if the last file is full.
        newest: storeTimestamp of the last record; 0 if the walk met none.
        damage: messages that were known to be flushed are past the end, so no crash explains it.
    """

    start: int
    offset: int
    cause: str
    newest: int
    damage: bool


def repair_files(folder: str) -> None:
    """Remove empty segments and lengthen a short last one, as a crash can leave them.

    Raises:
        CorruptStoreError: a file before the last has another length than the others, or is missing;
            or the last file is longer than the others.
    """
    found: list[tuple[int, str, int]] = []
    for name in sorted(os.listdir(folder)):
        start, path = segment_start(name), os.path.join(folder, name)
        if start is None or not os.path.isfile(path):
            continue
        size = os.path.getsize(path)
        if size == 0:
            with explained(path, "removed"):
                os.unlink(path)
            sync_folder(folder)
        else:
            found.append((start, path, size))
    if not found:
        return
    sizes = Counter(size for _, _, size in found)
    usual = max(sizes, key=lambda size: (sizes[size], size))
    for (_, path, size), following in zip(found, [*found[1:], None], strict=True):
        if size == usual:
            continue
        if following is not None or size > usual:
            raise CorruptStoreError(
                f"the file has {size} bytes, and the other files of the log have {usual}",
                file=path,
                remedy="Restore it from a copy of the store.",
            )
        with explained(path, "lengthened"):
            os.truncate(path, usual)
    for before, after in itertools.pairwise(found):
        if after[0] != before[0] + usual:
            raise CorruptStoreError(
                f"no file holds the log from {before[0] + usual} to {after[0]}",
                file=folder,
                remedy=_RESTORE,
            )


def unclean_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Return where to start the walk after a kill: at a segment that the checkpoint vouches for."""
    times = checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp
    vouched = min(times) - GRACE_MS
    for segment in reversed(log.segments()):
        first = record_head(log, segment.start)
        if first is not None and 0 < int(first.store_timestamp[0]) <= vouched:
            return segment.start
    return log.min_offset


def find_end(
    log: CommitLog,
    start: int,
    *,
    flushed: int,
    latest: int,
    named_end: int = 0,
    clean: bool = False,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> LogEnd:
    """Walk the log to its end. The CRC of every body is checked.

    Args:
        start: physical offset of a record.
        flushed: the checkpoint's physicMsgTimestamp.
        latest: later storeTimestamps are ignored: nothing protects the field, and times never go
            back.
        named_end: everything below was in the log when the store was closed cleanly.
        clean: whether the store was closed cleanly.
        progress: called with the bytes done and the total bytes.
    """
    newest, at = 0, start
    total = log.file_end - start
    for item in walk_log(log, start, log.file_end, resume=False):
        if isinstance(item, Flaw):
            damage = item.offset < named_end or (
                not (clean and item.empty) and _is_below(log, item, newest, flushed)
            )
            return LogEnd(start, item.offset, item.cause, newest, damage)
        times = item.records.store_timestamp
        newest = max(newest, int(times.max(initial=0, where=times <= latest)))
        at = item.end
        progress(at - start, total)
    return LogEnd(start, log.file_end, "", newest, False)


def damage_error(log: CommitLog, end: LogEnd) -> CorruptStoreError:
    """Return the error for a log that is damaged below what was flushed."""
    file, at = log.place(end.offset)
    cause = (
        f"the log is damaged: {end.cause or 'it ends'} (physical offset {end.offset}), below "
        "what was known to be on disk"
    )
    return CorruptStoreError(cause, file=file, offset=at, remedy=_CUT)


def _is_below(log: CommitLog, flaw: Flaw, newest: int, flushed: int) -> bool:
    """Return whether a flaw lies before the message that the checkpoint knows as flushed.

    The time of that message is `flushed`, and times never go back. Other messages of the same
    millisecond may follow it without having reached the disk, so only older messages are certainly
    before it. (A block is later than all before it: if its time is known as flushed, it was
    published.)
    """
    if flaw.unpublished is not None:
        return flaw.unpublished <= flushed
    record = record_head(log, flaw.offset)
    if record is not None:
        return int(record.store_timestamp[0]) < flushed
    return newest < flushed
