"""Writes the IndexFiles: keys go into the newest file, and into a new one when it is full.

See docs/format.md, "An IndexFile" (upstream: IndexService). The index can be rebuilt, and is never
authoritative. The slots of the newest file are held in memory. Entries are written as they come;
slots and header at a `flush`, the header last. So a reader never finds a header that counts missing
entries. After a crash, recovery rebuilds the files that are not sealed (full and flushed).

`insert` and `settle` belong to one thread; `flush` may be called from another. It keeps the newest
file to itself while it writes the slots, and a full one goes to disk beside inserts.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.directory import is_index_name
from rmqstore_spark.files.durable import (
    FILE_MODE,
    explained,
    explanation,
    make_folder,
    sync_folder,
    write_all,
)
from rmqstore_spark.layout.index.build import link_entries
from rmqstore_spark.layout.index.format import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    HEADER_SIZE,
    SLOT_DTYPE,
    IndexHeader,
    decode_slots,
    entry_position,
    slot_position,
)
from rmqstore_spark.layout.spans import I4, I8

_NAMES_LEFT: Final = 10_000  # reserved for files created between others
_MOST_SEALED: Final = 2  # each holds its slots in memory


class IndexShape(NamedTuple):
    """The capacity of an index file, which is not recorded in it.

    Attributes:
        slots: `maxHashSlotNum`.
        entries: `maxIndexNum`, of which the first is never used.
    """

    slots: int = DEFAULT_SLOTS
    entries: int = DEFAULT_ENTRIES

    @property
    def file_size(self) -> int:
        """Bytes of a file."""
        return entry_position(self.slots, self.entries)


_USUAL: Final = IndexShape()


@dataclass
class _OpenIndex:
    """The newest file, or a full one that is not flushed yet."""

    path: str
    descriptor: int
    shape: IndexShape
    header: IndexHeader
    slots: npt.NDArray[np.int32]
    unwritten: deque[tuple[int, npt.NDArray[np.uint8]]] = field(default_factory=deque)
    changed: bool = False

    @property
    def is_full(self) -> bool:
        return self.header.next_entry >= self.shape.entries

    def write_entries(self) -> None:
        try:  # without a call of `explained`: this is done for each message
            while self.unwritten:
                at, data = self.unwritten[0]
                write_all(self.descriptor, data, at)
                self.unwritten.popleft()
        except OSError as error:
            raise explanation(error, self.path, "written") from error

    def flush(self, *, sync: bool) -> None:
        """Write the slots, then the header that counts their entries."""
        with explained(self.path, "flushed"):
            write_all(self.descriptor, self.slots.view(np.uint8), slot_position(0))
            if sync:
                os.fdatasync(self.descriptor)
            write_all(self.descriptor, self.header.encode(), 0)
            if sync:
                os.fdatasync(self.descriptor)
        self.changed = False

    def close(self) -> None:
        os.close(self.descriptor)


class IndexFiles:
    """The index of a store, or a part of it that is rebuilt.

    Args:
        store: the store directory.
        shape: capacity of new files.
        clock: returns milliseconds since the epoch; names new files.
        last: name of the newest existing file, or "" if there is none.
        after: header of that file.
        before: new files get names before this one; "" for no bound.
        on_sealed: called with the storeTimestamp of the last key of each file that is full and
            flushed.

    Attributes:
        is_flushing: whether `settle` may have to wait for a `flush`.
        has_room: whether a file has room for a key; `make_room` creates one.
    """

    def __init__(
        self,
        store: str,
        *,
        clock: Callable[[], int],
        shape: IndexShape = _USUAL,
        last: str = "",
        after: IndexHeader | None = None,
        before: str = "",
        on_sealed: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.folder = os.path.join(store, "index")
        self.shape = shape
        self._clock = clock
        self._last = last
        self._after = after
        self._before = before
        self._on_sealed = on_sealed
        self._lock = threading.Lock()
        self._has_sealed = threading.Condition(self._lock)
        self._is_sealing = False
        self.is_flushing = self.has_room = False
        self._newest: _OpenIndex | None = None
        self._sealed: deque[_OpenIndex] = deque()
        self._held: deque[tuple[I4, I8, I8]] = deque()
        self.names: list[str] = []
        """Names of the files that this object created."""

    def resume(self, shape: IndexShape) -> None:
        """Continue with the last file if it has room.

        Raises:
            StoreWriteError: the file cannot be opened or read.
        """
        if self._after is None or self._after.next_entry >= shape.entries:
            return
        path = os.path.join(self.folder, self._last)
        with explained(path, "opened"):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                data = os.pread(descriptor, slot_position(shape.slots), 0)
                slots = decode_slots(data, shape.slots).copy()
            except BaseException:
                os.close(descriptor)
                raise
        self._newest = _OpenIndex(path, descriptor, shape, self._after, slots)
        self.has_room = True

    def insert(self, key_hash: I4, phy_offset: I8, store_timestamp: I8) -> None:
        """Insert keys in order: `hold` and `settle`."""
        self.hold(key_hash, phy_offset, store_timestamp)
        self.settle()

    def hold(self, key_hash: I4, phy_offset: I8, store_timestamp: I8) -> None:
        """Take over keys that `settle` will insert.

        Args:
            key_hash: m, as `layout.record.block.index_hashes` returns them.
            phy_offset: m, of their records, ascending.
            store_timestamp: m, of their records, milliseconds.
        """
        if len(key_hash):
            self._held.append((key_hash, phy_offset, store_timestamp))

    def settle(self) -> None:
        """Insert the keys that are held. After a failure, call it again to continue.

        Raises:
            StoreWriteError: an index file could not be created or written; `errno` says why.
        """
        with self._lock:
            if self._newest is not None and self._newest.unwritten:
                self._newest.write_entries()
            while self._held:
                file = self._with_room()
                hashes, offsets, times = self._held[0]
                entries, header = link_entries(
                    file.header, file.slots, file.shape.entries, hashes, offsets, times
                )
                at = entry_position(file.shape.slots, file.header.next_entry)
                file.unwritten.append((at, np.frombuffer(entries, np.uint8)))
                file.header, file.changed = header, True
                self.has_room = not file.is_full
                taken = len(entries)
                self._held.popleft()
                if taken < len(hashes):
                    self._held.appendleft((hashes[taken:], offsets[taken:], times[taken:]))
                file.write_entries()

    def make_room(self) -> None:
        """Create a file if none has room. A broker does so before it has a key.

        Raises:
            StoreWriteError: the file could not be created.
        """
        with self._lock:
            self._with_room()

    def flush(self, *, sync: bool = False) -> None:
        """Make inserted keys visible to readers, and seal full files.

        Args:
            sync: flush the newest file to disk too, as at a clean close.

        Raises:
            StoreWriteError: a file could not be written.
        """
        self._seal()
        self.is_flushing = True
        try:
            with self._lock:
                newest = self._newest
                if newest is not None and (newest.changed or sync):
                    newest.write_entries()
                    newest.flush(sync=sync)
        finally:
            self.is_flushing = False

    def old_files(self, log_begin: int) -> list[str]:
        """Return the paths of the files whose keys are all of expired messages, the oldest first.

        The newest file is not among them. (Upstream: IndexService.deleteExpiredFile.)

        Args:
            log_begin: physical offset of the log's first byte.
        """
        with self._lock:
            held = {
                file.path for file in [*self._sealed, *([self._newest] if self._newest else [])]
            }
        try:
            names = sorted(name for name in os.listdir(self.folder) if is_index_name(name))
        except FileNotFoundError:
            return []
        found = []
        for name in names[:-1]:
            path = os.path.join(self.folder, name)
            if path in held or _end_of(path) >= log_begin:
                break
            found.append(path)
        return found

    def close(self) -> None:
        """Close all files, without flushing them."""
        with self._lock:
            for file in [*self._sealed, *([self._newest] if self._newest else [])]:
                file.close()
            self._sealed.clear()
            self._newest = None
            self.has_room = False

    # ---- parts ---------------------------------------------------------------------------------

    def _with_room(self) -> _OpenIndex:
        """Return the newest file, or a new one if that is full."""
        if self._newest is not None and not self._newest.is_full:
            return self._newest
        while len(self._sealed) >= _MOST_SEALED:
            self._seal_oldest()
        made = self._make()
        if self._newest is not None:
            self._sealed.append(self._newest)
        self._newest = made
        self.has_room = True
        return made

    def _make(self) -> _OpenIndex:
        if self._newest is not None:
            self._after = self._newest.header
        header = IndexHeader(index_count=0)  # as a broker leaves it until the first key comes
        if self._after is not None:
            old = self._after
            header = replace(
                header,
                begin_timestamp=old.end_timestamp,
                end_timestamp=old.end_timestamp,
                begin_phy_offset=old.end_phy_offset,
                end_phy_offset=old.end_phy_offset,
            )
        make_folder(self.folder)
        name = self._next_name()
        path = os.path.join(self.folder, name)
        with explained(path, "made"):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, FILE_MODE)
            try:
                os.ftruncate(descriptor, self.shape.file_size)
                write_all(descriptor, header.encode(), 0)
                sync_folder(self.folder)
            except BaseException:
                os.close(descriptor)
                os.unlink(path)
                raise
        self._last = name
        self.names.append(name)
        slots = np.zeros(self.shape.slots, SLOT_DTYPE)
        return _OpenIndex(path, descriptor, self.shape, header, slots)

    def _next_name(self) -> str:
        """Return a free name by the clock, after the last file's and before the next one's."""
        number = int(index_name(self._clock()))
        if self._before:
            number = min(number, int(self._before) - _NAMES_LEFT)
        if self._last:
            number = max(number, int(self._last) + 1)
        while os.path.lexists(os.path.join(self.folder, f"{number:017}")):
            number += 1
        if self._before and number >= int(self._before):
            raise StoreWriteError(
                f"no name is left for an index file before {self._before} in {self.folder}. "
                "Remove the folder: the next start rebuilds the index."
            )
        return f"{number:017}"

    def _seal(self) -> None:
        with self._lock:
            while self._sealed:
                self._seal_oldest()

    def _seal_oldest(self) -> None:
        """Seal the oldest full file, or wait for the thread that does. Needs the lock.

        It lets the lock go meanwhile: the disk takes long for hundreds of megabytes.
        """
        if self._is_sealing:
            self._has_sealed.wait()
            return
        file, self._is_sealing = self._sealed[0], True
        self._lock.release()
        try:
            file.write_entries()
            file.flush(sync=True)
        finally:
            self._lock.acquire()
            self._is_sealing = False
            self._has_sealed.notify_all()
        self._sealed.popleft()
        file.close()
        self._on_sealed(file.header.end_timestamp)


def _end_of(path: str) -> int:
    """Return the physical offset of the last key's record, as an index file states it."""
    with explained(path, "read"), open(path, "rb") as file:
        return IndexHeader.decode(file.read(HEADER_SIZE), file=path).end_phy_offset


def index_name(millis: int) -> str:
    """Return a broker's name for an index file created now: local time, `yyyyMMddHHmmssSSS`."""
    moment = datetime.fromtimestamp(millis // 1000)  # noqa: DTZ006 - a broker takes local time
    return f"{moment:%Y%m%d%H%M%S}{millis % 1000:03}"
