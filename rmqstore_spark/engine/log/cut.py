"""Cuts the log at an offset. The bytes behind it are saved elsewhere first, then wiped.

The block of a commit that was killed is wiped only: it is as large as a batch, nobody has seen it,
and Spark writes it again.

    <store>/rmqstore/cut/{offset, 20 digits}-{time}/{offset, 20 digits}     the bytes as they were
                                                    cut.json                why

A record left behind the log's end would come back to life once another record ends where it
begins. So only zeros may remain there.

`set_aside` sets all of a log aside, so that the store can begin with another one:

    <store>/rmqstore/aside/{time}/      commitlog, consumequeue, index, checkpoint, and what the
                                        store remembered of them

The CommitLog goes last. If this is interrupted, the store still has its log, and rebuilds from it
what has gone before: it can be opened, or set aside again. The configuration of topics stays. Of a
folder that is a link to another disk, the target gets another name beside it, to which a link in
`aside/` leads, and an empty folder takes its place.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Final

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.lock import StoreLock
from rmqstore_spark.engine.reserve import RESERVE_PREFIX
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import (
    FILE_MODE,
    FOLDER_MODE,
    NO_ROOM,
    explained,
    make_folder,
    replace_file,
    sync_file,
    sync_folder,
    wipe,
    written_end,
)
from rmqstore_spark.files.log_files import Segment
from rmqstore_spark.files.names import OWN_FOLDER
from rmqstore_spark.layout.fields import MIN_RECORD_SIZE

_CHUNK: Final = 4 << 20
_PARTIAL: Final = ".partial"


@dataclass(frozen=True)
class CutRange:
    """Bytes that were cut off the log.

    Attributes:
        start: physical offset of the first byte.
        end: physical offset one past the last byte that was not zero.
        kept: file that holds them now.
    """

    start: int
    end: int
    kept: str

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.start


def end_log(
    store: str,
    segments: Sequence[Segment],
    end: int,
    *,
    cause: str,
    now: int,
    unpublished: tuple[int, int] | None = None,
) -> tuple[CutRange, ...]:
    """Cut the log at an offset and save the bytes behind it.

    After an interruption, a second call gives the same log.

    Args:
        store: the store directory.
        segments: all files of the log, in order.
        end: physical offset of the log's new end.
        cause: why it ends there; recorded with the saved bytes.
        now: milliseconds since the epoch.
        unpublished: where the first record of a block begins that was never part of the log, and
            where the block ends. Before it, there are only zeros, or a blank. It is not saved.

    Returns:
        The ranges that were cut off and saved; empty if there were only zeros.

    Raises:
        StoreWriteError: the bytes could not be saved or wiped. Nothing is wiped before all are
            saved.
    """
    behind = [segment for segment in segments if segment.end > end]
    extents = []
    for segment in behind:
        found = written_end(segment.path, max(0, end - segment.start))
        if found is not None:
            extents.append((segment, max(0, end - segment.start), found))
    saved = list(_to_save(extents, end, unpublished))
    kept = _keep(store, saved, end, cause, now, unpublished) if saved else ()
    assert [cut.start for cut in kept] == [segment.start + at for segment, at, _ in saved], (
        "bytes would be cut off the log that were not saved"
    )
    assert all(cut.start >= end for cut in kept), f"bytes before {end} would be cut off the log"
    reach("recovery.after_keep")
    dirty = {segment.path: stop for segment, _, stop in extents}
    for segment in reversed(behind):
        if segment.start > end:
            with explained(segment.path, "removed"):
                os.unlink(segment.path)
        elif segment.path in dirty:
            if unpublished is not None:  # without its head, a block is not known for what it is
                behind_head = unpublished[0] + MIN_RECORD_SIZE - segment.start
                wipe(segment.path, behind_head, dirty[segment.path])
            wipe(segment.path, end - segment.start, dirty[segment.path])
    for folder in {os.path.dirname(segment.path) for segment in behind}:
        sync_folder(folder)
    return kept


_Extent = tuple[Segment, int, int]
"""A segment, and the first and last byte of a range in it, the latter excluded."""


def _to_save(
    extents: Sequence[_Extent], end: int, unpublished: tuple[int, int] | None
) -> Iterator[_Extent]:
    """Yield what of some ranges may be messages: all but a block that was not published."""
    stop = end if unpublished is None else unpublished[1]
    for segment, begin, found in extents:
        if segment.start + found > stop:
            # A segment that leaves the log as a whole is saved by its name, which needs no room.
            at = begin if segment.start > end else max(begin, stop - segment.start)
            yield segment, at, found


def _keep(
    store: str,
    extents: Sequence[_Extent],
    end: int,
    cause: str,
    now: int,
    unpublished: tuple[int, int] | None,
) -> tuple[CutRange, ...]:
    parent = os.path.join(store, OWN_FOLDER, "cut")
    make_folder(parent)
    for name in os.listdir(parent):
        if name.endswith(_PARTIAL):  # left by an interrupted recovery: the log still has it
            shutil.rmtree(os.path.join(parent, name))
    moment = datetime.fromtimestamp(now / 1000, timezone.utc)
    folder = os.path.join(parent, f"{end:020}-{moment:%Y%m%dT%H%M%S}{now % 1000:03}Z")
    partial = folder + _PARTIAL
    make_folder(partial)
    ranges = []
    for segment, begin, stop in extents:
        name = f"{segment.start + begin:020}"
        target = os.path.join(partial, name)
        # The file may leave the log as a whole: then a link needs no room.
        if not (segment.start > end and _link(segment.path, target)):
            try:
                _copy(segment.path, begin, stop, target)
            except StoreWriteError as error:
                raise _without_room(error, partial, stop - begin) from error
        kept = os.path.join(folder, name)
        ranges.append(CutRange(segment.start + begin, segment.start + stop, kept))
    note: dict[str, object] = {"logEnd": end, "cause": cause, "time": now}
    note["ranges"] = [asdict(each) for each in ranges]
    if unpublished is not None:
        note["unpublished"] = unpublished
    replace_file(os.path.join(partial, "cut.json"), json.dumps(note, indent=2).encode())
    with explained(folder, "put in place"):
        if os.path.isdir(folder):
            shutil.rmtree(folder)  # the same cut, at the same millisecond
        os.rename(partial, folder)
    sync_folder(parent)
    return tuple(ranges)


def _without_room(error: StoreWriteError, partial: str, size: int) -> StoreWriteError:
    """Return the error for bytes that could not be saved, and remove what was saved of them."""
    if error.errno not in NO_ROOM:
        return error
    shutil.rmtree(partial, ignore_errors=True)
    failure = StoreWriteError(
        f"{error} The store ends its log where a crash broke it, and saves what follows there "
        f"({size} bytes), because it may be messages. Nothing has been removed: make room for it, "
        "then start the store again."
    )
    failure.errno = error.errno
    return failure


def _link(source: str, target: str) -> bool:
    """Give a file another name; return whether both are on one disk, which that needs."""
    with explained(target, "linked"):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return False
            raise
    sync_file(target)
    return True


def _copy(source: str, begin: int, stop: int, target: str) -> None:
    with explained(target, "written"):
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            writing = os.open(
                target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE
            )
            try:
                while begin < stop:
                    done = os.sendfile(writing, reading, begin, min(stop - begin, _CHUNK))
                    if not done:
                        break
                    begin += done
                os.fsync(writing)
            finally:
                os.close(writing)
        finally:
            os.close(reading)


_PARTS: Final = ("index", "consumequeue", "consumequeue_ext", "checkpoint", "abort")
_OWN_THAT_STAYS: Final = frozenset({"aside", "cut", "ready", "staging"})


def set_aside(store: str, now: int) -> str | None:
    """Move a store's log, queues and index into a folder of the store, with its lock held.

    Args:
        store: the store directory.
        now: milliseconds since the epoch; names the folder.

    Returns:
        The folder; None if the store has no log.

    Raises:
        StoreLockedError: another process has the store open.
        StoreWriteError: something could not be moved.
    """
    log = os.path.join(store, "commitlog")
    if not os.path.isdir(log):
        return None
    with StoreLock(store):
        moment = datetime.fromtimestamp(now / 1000, timezone.utc)
        own = os.path.join(store, OWN_FOLDER)
        folder = os.path.join(own, "aside", f"{moment:%Y%m%dT%H%M%S}{now % 1000:03}Z")
        make_folder(folder)
        kept = os.path.join(folder, OWN_FOLDER)
        make_folder(kept)
        for name in _PARTS:
            _move(os.path.join(store, name), os.path.join(folder, name))
        for name in os.listdir(own):
            if name not in _OWN_THAT_STAYS and not name.startswith(RESERVE_PREFIX):
                _move(os.path.join(own, name), os.path.join(kept, name))
        for changed in (kept, folder, own, store):
            sync_folder(changed)
        _move(log, os.path.join(folder, "commitlog"))
        for changed in (folder, store):
            sync_folder(changed)
        return folder


def _move(source: str, target: str) -> None:
    if not os.path.lexists(source):
        return
    with explained(source, "moved"):
        if not os.path.islink(source):
            os.rename(source, target)
            return
        real = os.path.realpath(source)
        kept = f"{real}.aside-{os.path.basename(os.path.dirname(target))}"
        os.rename(real, kept)
        os.mkdir(real, FOLDER_MODE)
        os.symlink(kept, target)
        sync_folder(os.path.dirname(real))
